#include "support/other_sizes.hpp"

#include <utility>
#include <vector>

#include "problem/block_scales.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::test {
namespace {

/// A shape that these block scales may have. Scales of rows are another structure than those of elements, so that the
/// head dim keeps its own.
std::vector<std::int64_t> other_block_scales(const AttentionProblem& problem, const OperandSpec& scales,
                                             std::mt19937_64& random) {
  using problem::TensorRole;
  const std::string& name = scales.name;
  const TensorRole role = name == problem::kDescaleOfQueries ? TensorRole::kQ
                          : name == problem::kDescaleOfKeys  ? TensorRole::kK
                                                             : TensorRole::kV;
  const problem::TensorShape tensor = problem::memory_shape_of(problem, role);
  std::vector<std::int64_t> shape;
  for (std::size_t dimension = 0; dimension < 3; ++dimension) {
    const std::vector<std::int64_t> extents = problem::scale_extents(tensor, dimension);
    shape.push_back(extents[random() % extents.size()]);
  }
  shape.push_back(scales.shape.back());
  return shape;
}

}  // namespace

AttentionProblem at_other_sizes(AttentionProblem problem, std::mt19937_64& random) {
  const auto any = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(1, most)(random); };
  problem.batch = any(4);
  problem.heads_kv = any(3);
  problem.heads_q = problem.heads_kv * any(3);
  problem.seq_q = any(200);
  problem.seq_kv = any(300);
  if (problem.tokens_q) problem.tokens_q = any(problem.batch * problem.seq_q);
  if (problem.tokens_kv) problem.tokens_kv = any(problem.batch * problem.seq_kv);
  if (problem.paged) {
    const std::int64_t block = problem.paged->block_size;
    problem.paged->blocks_per_sequence = (problem.seq_kv + block - 1) / block + any(3) - 1;
    problem.paged->blocks = any(40);
  }
  for (TensorLayout* layout : {&problem.q, &problem.k, &problem.v, &problem.o}) layout->strides.reset();
  for (auto* layout : {&problem.d_o, &problem.dq, &problem.dk, &problem.dv}) {
    if (*layout) (*layout)->strides.reset();
  }
  for (OperandSpec& spec : problem.operands) {
    spec.strides.clear();
    if (problem::has_head_scales(problem, spec.name)) spec.shape = {problem.heads_kv};
    if (problem::has_block_scales(problem, spec.name)) spec.shape = other_block_scales(problem, spec, random);
    for (const OperandDecl& decl : problem.program.operands()) {
      if (decl.name != spec.name) continue;
      if (!decl.is_table()) {
        spec.shape = problem::default_spec(problem, decl).shape;
      } else {
        for (std::int64_t& size : spec.shape) size = any(20);
      }
    }
  }
  return problem;
}

}  // namespace scoremod::test
