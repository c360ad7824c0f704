// Trials with few rows and keys accept the attention kernels, which the emulated device runs. A wrong refusal would
// leave such a problem without a backend.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "base/element.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "problem/block_scales.hpp"
#include "problem/implied_operands.hpp"
#include "problem/stored_problem.hpp"
#include "problem/strided_tensor.hpp"
#include "support/emulated_plans.hpp"
#include "support/option_cases.hpp"
#include "support/problem_for.hpp"
#include "support/test_seed.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::verification {
namespace {

using backend::Direction;
using backend::kernels::AnyShape;

/// As the kernels' on a GPU.
constexpr OperationErrors kOfKernels{0x1p-20, 0x1p-20};
constexpr int kHopper = 90;

/// One of each family that has kernels for the problem.
std::vector<AnyShape> shapes_of(const AttentionProblem& problem, Direction direction) {
  std::vector<AnyShape> shapes{backend::kernels::portable_shape(problem, direction)};
  if (backend::kernels::hopper_objections(problem, direction, kHopper).empty())
    shapes.push_back(backend::kernels::hopper_shapes(problem, direction).front());
  if (direction == Direction::kBackward || !backend::kernels::split_kv_objections(problem).empty()) return shapes;
  backend::DeviceProperties device;
  device.compute_capability = kHopper;
  device.multiprocessors = 8;
  device.shared_memory_per_block = 232448;
  shapes.push_back(backend::kernels::split_kv_shapes(problem, device).front());
  const auto persistent = backend::kernels::persistent_split_kv_shapes(problem, device);
  if (!persistent.empty()) shapes.push_back(persistent.front());
  if (backend::kernels::hopper_objections(problem, direction, kHopper).empty() &&
      backend::kernels::hopper_split_kv_objections(problem).empty()) {
    shapes.push_back(backend::kernels::hopper_split_kv_shapes(problem, device.multiprocessors).front());
    if (!persistent.empty())
      shapes.push_back(backend::kernels::persistent_hopper_split_kv_shape(problem, device.multiprocessors));
  }
  return shapes;
}

/// Lists the wrong outputs of trials of a problem's kernels, in every family; empty if there are none.
std::string wrong(const AttentionProblem& problem) {
  const compiler::CompiledProblem subject = compiler::compile(problem);
  Trial trial(subject);
  const compiler::CompiledProblem& tried = trial.problem();
  std::string found;
  const auto note = [&](const AnyShape& shape, const Verdict& verdict) {
    if (!verdict.right) found += concat(backend::kernels::traits_of(shape).name, ": ", verdict.reason, "\n");
  };
  for (const AnyShape& shape : shapes_of(tried.problem, Direction::kForward)) {
    const auto verify = [&](const AnyShape& of) {
      const auto plan = test::emulated_forward_plan(tried, of);
      note(shape, verdict_of(verify_forward(trial, *plan, backend::host_memory(), kOfKernels), Direction::kForward));
    };
    verify(shape);
    if (const auto few = backend::kernels::tiled_variant(shape)->on_few_ctas()) verify(few);
  }
  if (!tried.backward) return found;
  for (const AnyShape& shape : shapes_of(tried.problem, Direction::kBackward)) {
    const auto plan = test::emulated_backward_plan(tried, shape);
    note(shape,
         verdict_of(verify_backward(trial, *plan, backend::host_memory(), {}, true, kOfKernels), Direction::kBackward));
  }
  return found;
}

/// A fault may lie in what a decode kernel does with its second chunk of keys. Few CTAs show it, and they alone: of so
/// small a problem each of a whole device's teams has one chunk at most.
TEST(EmulatedTrials, OfDecodesTakeManyTilesOneAfterTheOther) {
  AttentionProblem problem = test::small_problem();
  problem.batch = 4;
  problem.heads_q = 8;
  problem.heads_kv = 2;
  problem.seq_q = 2;
  problem.seq_kv = 8192;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = false;
  problem.lengths.kv = true;
  problem.paged = PagedKeys{16, 3000, 512};
  problem.program = Program::parse("value = score");
  const compiler::CompiledProblem subject = compiler::compile(problem::with_implied_operands(problem));
  Trial trial(subject);
  backend::DeviceProperties device;
  device.compute_capability = kHopper;
  device.multiprocessors = 264;
  device.shared_memory_per_block = 232448;
  const AttentionProblem& tried = trial.problem().problem;
  const test::EmulatedLaunches::Fault skipped{"    tile = tile_of(bit_number(lowest));\n",
                                              "    tile = tile_of(bit_number(lowest) % kChunkTiles);\n"};
  for (const backend::kernels::SplitKvShape& shape :
       {backend::kernels::persistent_split_kv_shapes(tried, device).front(),
        backend::kernels::persistent_hopper_split_kv_shape(tried, device.multiprocessors)}) {
    SCOPED_TRACE(shape.hopper ? "by warpgroups" : "by warps");
    const auto is_right = [&](const backend::kernels::Variant& variant, const test::EmulatedLaunches::Fault& fault) {
      const auto plan = test::emulated_forward_plan(trial.problem(), variant, fault);
      return verdict_of(verify_forward(trial, *plan, backend::host_memory(), kOfKernels), Direction::kForward).right;
    };
    const auto all = backend::kernels::tiled_variant(shape), few = all->on_few_ctas();
    ASSERT_NE(few, nullptr);
    EXPECT_TRUE(is_right(*few, {}));
    EXPECT_TRUE(is_right(*all, skipped)) << "each team has a tile or two";
    EXPECT_FALSE(is_right(*few, skipped));
  }
}

checking::CheckCase few_rows_case(std::uint64_t seed) {
  checking::RandomProblemOptions options;
  options.few_rows_probability = 1;
  options.dtypes = {DType::kF32, DType::kF16, DType::kBF16};
  options.head_dims = {8, 16, 32, 40, 64, 72};
  options.row_alignment = 8;
  options.shifted_value_probability = 0.4;
  options.lengths_probability = options.dropout_probability = options.max_logit_probability = 0.15;
  options.sink_probability = 0.4;
  options.output_dtype_probability = options.gradient_layout_probability = options.ragged_probability = 0.15;
  return checking::random_problem(seed, options);
}

/// A weight of e^-96 beside a sink of 0 is none of float32's normal numbers, and so 0 on a GPU. (random/839 of seed
/// 914233.)
TEST(EmulatedTrials, TakeWeightsBelowNormalNumbersForZero) {
  AttentionProblem problem = test::small_problem();
  problem.batch = 3;
  problem.heads_q = 2;
  problem.heads_kv = problem.seq_q = problem.seq_kv = 1;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kF32;
  problem.sink = Sink::kOffByOne;
  problem.max_logit = problem.backward = problem.stats = true;
  problem.program = Program::parse("value = score * 0.02 - 96.0");
  EXPECT_EQ(wrong(problem), "");
}

/// Tiles hold a d_o of f16 in bf16, and deltas must be of the same. Two keys for each query show it, whose weights are
/// nearly 1 in many rows. (random/1408 of seed 55120077.)
TEST(EmulatedTrials, TakeGradientsOfADOThatTilesRound) {
  AttentionProblem problem = test::small_problem();
  problem.batch = 1;
  problem.heads_q = 9;
  problem.heads_kv = 3;
  problem.seq_q = problem.seq_kv = 128;
  problem.dim_qk = problem.dim_v = 64;
  problem.dtype = DType::kBF16;
  problem.dtype_o = DType::kF16;
  problem.sink = Sink::kLearned;
  problem.q = problem.k = problem.v = problem.o = {Layout::kBHSD, {}};
  problem.backward = problem.stats = true;
  problem.program = Program::parse(
      "table x0: f32 rank 2\noperand x1: i32 [b, h, kv_idx]\ntable x2: bool rank 1\ntable x3: i32 rank 2\n"
      "let %0 = sigmoid(atan(f32(x1)))\nlet %1 = %0 + 0.5\nlet %2 = pow(%1, %1)\n"
      "value = (score + %2 * %0 * %2) * 0.948652\nkeep = kv_idx <= 1");
  problem.operands = {{"x0", DType::kF32, {9, 2}, {}},
                      {"x1", DType::kI32, {1, 9, 128}, {}},
                      {"x2", DType::kBool, {12}, {}},
                      {"x3", DType::kI32, {2, 9}, {}}};
  EXPECT_EQ(wrong(problem), "");
}

/// The elements of q, k or v times their block scales, in the other problem's dtype and layout.
std::vector<std::byte> converted(const AttentionProblem& given, const AttentionProblem& stored,
                                 problem::TensorRole role, const void* from, std::span<const void* const> operands,
                                 std::int64_t turned) {
  const problem::StridedTensor source = problem::tensor_of("", given, role),
                               target = problem::tensor_of("", stored, role);
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(source.elements()));
  source.for_each_offset([&](std::int64_t number, std::int64_t at) { offsets[static_cast<std::size_t>(number)] = at; });
  const problem::BlockScales scales(given, role);
  std::vector<std::byte> to(target.bytes());
  const std::int64_t dim = target.shape[3], rows = target.shape[2], heads = target.shape[1];
  target.for_each_offset([&](std::int64_t number, std::int64_t at) {
    const std::int64_t row = number / dim, head = row / rows;
    std::vector<double> scale(static_cast<std::size_t>(dim), 1.0);
    scales.of(head / heads, (head + turned) % heads, operands).apply(row % rows, std::span(scale));
    const double value = load_element<double>(static_cast<const std::byte*>(from), source.dtype,
                                              offsets[static_cast<std::size_t>(number)]);
    store_element(to.data(), target.dtype, at, value * scale[static_cast<std::size_t>(number % dim)]);
  });
  return to;
}

/// The backward of a problem with block scales by kernels of the 16-bit problem that its values make.
class ConvertedBackward final : public backend::BackwardPlan {
 public:
  /// With `turned` it takes the scales of as many heads later.
  explicit ConvertedBackward(const AttentionProblem& given, std::int64_t turned = 0)
      : given_(given),
        turned_(turned),
        stored_(compiler::compile(problem::stored_problem(given, DType::kBF16))),
        engine_(test::emulated_backward_plan(
            stored_, backend::kernels::portable_shape(stored_.problem, Direction::kBackward))) {}
  std::size_t workspace_bytes() const override { return engine_->workspace_bytes(); }
  void execute(const backend::BackwardTensors& tensors, const backend::CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    using problem::TensorRole;
    const auto q = converted(given_, stored_.problem, TensorRole::kQ, tensors.q, tensors.operands, turned_);
    const auto k = converted(given_, stored_.problem, TensorRole::kK, tensors.k, tensors.operands, turned_);
    const auto v = converted(given_, stored_.problem, TensorRole::kV, tensors.v, tensors.operands, turned_);
    backend::BackwardTensors stored = tensors;
    stored.q = q.data();
    stored.k = k.data();
    stored.v = v.data();
    engine_->execute(stored, parameters, workspace);
  }

 private:
  AttentionProblem given_;
  std::int64_t turned_;
  compiler::CompiledProblem stored_;
  std::unique_ptr<backend::BackwardPlan> engine_;
};

/// Values are rounded to 16 bits, as a conversion does. (On an H200 all backwards of the options page were refused.)
TEST(EmulatedTrials, TakeBackwardsOfBlockScalesThatAreConverted) {
  const std::vector<test::Option> options = test::options();
  const auto option = std::ranges::find(options, "block_scales", &test::Option::name);
  AttentionProblem problem = test::option_case(*option, test::modifiers().front()).problem;
  problem.dtype_o = problem.dtype_d_o = problem.dtype_gradients = DType::kBF16;
  const compiler::CompiledProblem subject = compiler::compile(problem::with_implied_operands(problem));
  Trial trial(subject);
  const auto verdict = [&](std::int64_t turned) {
    const ConvertedBackward plan(trial.problem().problem, turned);
    return verdict_of(verify_backward(trial, plan, backend::host_memory(), {}, true, kOfKernels), Direction::kBackward);
  };
  EXPECT_TRUE(verdict(0).right) << verdict(0).reason;
  EXPECT_FALSE(verdict(1).right) << "the scales of other heads";
}

/// Whether values stay within float32's numbers on a trial's inputs. With NaN rows, the others may cancel to nothing in
/// a plain evaluation alone.
bool stays_finite(const AttentionProblem& problem) {
  const compiler::CompiledProblem subject = compiler::compile(problem);
  Trial trial(subject);
  return std::ranges::none_of(trial.forward_truth().lse, [](double lse) { return std::isnan(lse); });
}

/// Each text takes a host's compiler seconds: few problems, with new seeds each time.
TEST(EmulatedTrials, WithFewRowsAndKeysFindTheKernelsRight) {
  constexpr int kProblems = 3;
  int tried = 0;
  for (std::uint64_t number = 0; tried < kProblems; ++number) {
    const checking::CheckCase made = few_rows_case(test::test_seed() + number);
    if (!backend::kernels::problem_objections(compiler::compile(made.problem), Direction::kBackward).empty()) continue;
    if (!stays_finite(made.problem)) continue;
    EXPECT_EQ(wrong(made.problem), "") << "problem " << number << " (SCOREMOD_TEST_SEED=" << test::test_seed() << ")\n"
                                       << to_json(made.problem);
    ++tried;
  }
}

}  // namespace
}  // namespace scoremod::verification
