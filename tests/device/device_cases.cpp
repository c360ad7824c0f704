#include "device/device_cases.hpp"

#include <array>

#include "analysis/dependence.hpp"
#include "check/zoo_cases.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::test {
namespace {

/// As many as one kernel of the cuDNN backend has use for; a random program may have more.
constexpr std::size_t kMaxTensors = 24;

}  // namespace

checking::CheckCase zoo_problem(const std::string& name, int shape, DType dtype) {
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
  checking::CheckCase test = checking::zoo_case({name}, problem, dtype);
  test.name = name + " at shape " + std::to_string(shape) + " in " + to_string(dtype);
  return test;
}

checking::CheckCase axes_problem(int axes, bool windowed) {
  static constexpr std::array<const char*, kAxisCount> kNames{"b", "h", "q_idx", "kv_idx"};
  checking::CheckCase test;
  AttentionProblem& p = test.problem;
  p.batch = 3;
  p.heads_q = 6;
  p.heads_kv = 2;
  p.seq_q = 131;
  p.seq_kv = 70;
  p.dtype = DType::kBF16;
  p.backward = p.stats = true;
  const std::array<std::int64_t, kAxisCount> sizes{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  std::string names;
  OperandSpec spec{"x", windowed ? DType::kF32 : DType::kBF16, {}, {}};
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if ((axes >> axis & 1) == 0) continue;
    names += (names.empty() ? "" : ", ") + std::string(kNames[axis]);
    spec.shape.push_back(sizes[axis]);
  }
  std::int64_t stride = 2;
  spec.strides.resize(spec.shape.size());
  for (std::size_t d = spec.shape.size(); d-- > 0; stride = stride * spec.shape[d] + 3) spec.strides[d] = stride;
  p.program = Program::parse("operand x: f32 [" + names + "]\nvalue = tanh(score * x * 0.25) * 4.0 + x" +
                             (windowed ? "\nkeep = kv_idx <= q_idx & kv_idx + 40 > q_idx" : ""));
  p.operands = {spec};
  if (windowed) test.call.offsets = {0, 0, 3, 10};
  p.index_offsets = windowed;
  test.name = "[" + names + "]" + (windowed ? " in a window" : "");
  test.seed = windowed ? 1 : 0;
  return test;
}

checking::CheckCase long_problem(int number) {
  struct Long {
    const char* program;
    std::vector<OperandSpec> operands;
  };
  static const std::array<Long, kLongProblems> kProblems{
      {{"operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x\nkeep = kv_idx <= q_idx + 4500",
        {{"x", DType::kF16, {2, 150, 4613}, {}}}},
       {"operand x: f32 [kv_idx]\noperand y: f32 [q_idx]\nvalue = score * y + x",
        {{"x", DType::kF16, {4613}, {}}, {"y", DType::kF32, {530}, {}}}},
       {"table x: f32 rank 1\nvalue = score + x[q_idx - kv_idx + 4600]", {{"x", DType::kF32, {4800}, {}}}},
       {"operand x: f32 [h]\ntable y: f32 rank 2\nvalue = score * x + y[h, max(q_idx - kv_idx, 0) // 16]",
        {{"x", DType::kF16, {2}, {}}, {"y", DType::kBF16, {2, 16}, {}}}}}};
  checking::CheckCase test;
  AttentionProblem& p = test.problem;
  p.batch = number == 0 ? 2 : 1;
  // A block has as many queries as make 2^24 scores of up to 8 heads: 512 of these.
  p.heads_q = number == 1 ? 8 : 2;
  p.heads_kv = 2;
  p.seq_q = number == 1 ? 530 : 150;
  p.seq_kv = 4613;
  p.dim_qk = p.dim_v = 32;
  p.dtype = DType::kF16;
  p.backward = p.stats = true;
  p.program = Program::parse(kProblems[static_cast<std::size_t>(number)].program);
  p.operands = kProblems[static_cast<std::size_t>(number)].operands;
  test.name = "long " + std::to_string(number);
  return test;
}

checking::CheckCase few_rows_problem(int number) {
  struct Few {
    const char* program;
    std::int64_t seq_q, seq_kv;
    std::vector<std::int64_t> shape;
  };
  static const std::array<Few, kFewRowsProblems> kProblems{
      {{"table x: f32 rank 2\nvalue = score * 8.0 + x[h, q_idx - kv_idx + 20]\nkeep = kv_idx < 11 | q_idx >= kv_idx",
        1,
        300,
        {4, 21}},
       {"table x: f32 rank 2\nvalue = score * 8.0 + x[h, (q_idx + kv_idx) % 97]", 2, 4613, {4, 97}},
       {"operand x: f32 [h]\nvalue = (score + x * f32(kv_idx - q_idx)) * 6.0\nkeep = kv_idx <= q_idx + 40",
        64,
        200,
        {4}},
       {"operand x: f32 [h, q_idx, kv_idx]\nvalue = (score + x) * 6.0", 333, 17, {4, 333, 17}}}};
  const Few& few = kProblems[static_cast<std::size_t>(number)];
  checking::CheckCase test;
  AttentionProblem& p = test.problem;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seq_q = few.seq_q;
  p.seq_kv = few.seq_kv;
  p.dim_qk = p.dim_v = 128;
  p.dtype = DType::kBF16;
  p.backward = p.stats = true;
  p.program = Program::parse(few.program);
  p.operands = {{"x", DType::kF32, few.shape, {}}};
  test.name = "few rows " + std::to_string(number);
  return test;
}

std::vector<checking::CheckCase> timed_problems() {
  struct Timed {
    const char* name;
    const char* program;
    std::vector<std::int64_t> shape;
  };
  const std::vector<Timed> all{
      {"slopes [h]", "operand x: f32 [h]\nvalue = score + x * f32(kv_idx - q_idx)", {16}},
      {"slopes [h], causal",
       "operand x: f32 [h]\nvalue = score + x * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx",
       {16}},
      {"bias [h, q, kv]", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x", {16, 4096, 4096}},
      {"bias [q, kv]", "operand x: f32 [q_idx, kv_idx]\nvalue = score + x", {4096, 4096}},
      {"bias [kv]", "operand x: f32 [kv_idx]\nvalue = score + x", {4096}},
      {"relative table [h, 8191]", "table x: f32 rank 2\nvalue = score + x[h, q_idx - kv_idx + 4095]", {16, 8191}},
      {"relative table [8191]", "table x: f32 rank 1\nvalue = score + x[q_idx - kv_idx + 4095]", {8191}},
      {"bucketed table [h, 32]",
       "table x: f32 rank 2\nvalue = score + x[h, min(max(q_idx - kv_idx, 0) // 64, 31)]",
       {16, 32}}};
  std::vector<checking::CheckCase> tests;
  for (const Timed& timed : all) {
    checking::CheckCase test;
    AttentionProblem& p = test.problem;
    p.batch = 4;
    p.heads_q = p.heads_kv = 16;
    p.seq_q = p.seq_kv = 4096;
    p.dim_qk = p.dim_v = 128;
    p.dtype = DType::kBF16;
    p.backward = p.stats = true;
    p.program = Program::parse(timed.program);
    p.operands = {{"x", DType::kBF16, timed.shape, {}}};
    test.name = timed.name;
    tests.push_back(std::move(test));
  }
  return tests;
}

std::vector<backend::cuda::NodeTensor> score_free_tensors(const Program& program) {
  const std::vector<analysis::Dependence> dependences = analysis::dependences(program);
  std::vector<backend::cuda::NodeTensor> tensors;
  for (NodeId node = 0; node < dependences.size() && tensors.size() < kMaxTensors; ++node) {
    if (!dependences[node].score) tensors.push_back({node, dependences[node].axes, program.nodes()[node].type});
  }
  return tensors;
}

}  // namespace scoremod::test
