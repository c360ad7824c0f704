#include "device/device_cases.hpp"

#include <array>

#include "check/zoo_cases.hpp"
#include "passes/dependence.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::test {
namespace {

/// As many as one kernel of the cuDNN backend has use for; a random program may have more.
constexpr std::size_t kMaxTensors = 24;

}  // namespace

AttentionProblem zoo_problem(const std::string& name, int shape, DType dtype) {
  struct Shape {
    std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v;
    Layout layout;
  };
  static constexpr std::array<Shape, kZooShapes> kShapes{{{2, 4, 2, 70, 130, 64, 64, Layout::kBSHD},
                                                          {2, 2, 2, 129, 65, 128, 64, Layout::kBHSD},
                                                          {2, 3, 1, 1, 200, 32, 48, Layout::kSBHD},
                                                          {1, 6, 6, 97, 97, 16, 16, Layout::kBHSD}}};
  const Shape& s = kShapes[static_cast<std::size_t>(shape % kZooShapes)];
  AttentionProblem problem;
  problem.batch = s.batch;
  problem.heads_q = s.heads_q;
  problem.heads_kv = s.heads_kv;
  problem.seq_q = s.seq_q;
  problem.seq_kv = s.seq_kv;
  problem.dim_qk = s.dim_qk;
  problem.dim_v = s.dim_v;
  problem.q.layout = problem.k.layout = problem.v.layout = problem.o.layout = s.layout;
  problem.backward = problem.stats = true;
  return checking::zoo_case({name}, problem, dtype).problem;
}

std::vector<std::uint32_t> float_operands(const AttentionProblem& problem) {
  std::vector<std::uint32_t> operands;
  for (std::uint32_t i = 0; i < problem.program.operands().size(); ++i) {
    if (is_floating(problem::spec_of(problem, i).dtype)) operands.push_back(i);
  }
  return operands;
}

std::vector<backend::cuda::NodeTensor> score_free_tensors(const Program& program) {
  const std::vector<passes::Dependence> dependences = passes::dependences(program);
  std::vector<backend::cuda::NodeTensor> tensors;
  for (NodeId node = 0; node < dependences.size() && tensors.size() < kMaxTensors; ++node) {
    if (!dependences[node].score) tensors.push_back({node, dependences[node].axes, program.nodes()[node].type});
  }
  return tensors;
}

}  // namespace scoremod::test
