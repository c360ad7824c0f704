// The order in which CTAs take the tiles of heads, on a host, thread by thread. With several heads together every
// kernel still makes each tile once, and is right by the float64 oracle.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/problem_buffers.hpp"

#include "backend/kernels/hopper/family.hpp"
#include "backend/memory_space.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/call_tensors.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using ShapeFunction = AnyShape(const AttentionProblem&, Direction);

/// Not a divisor of the heads, so that the last ones are fewer.
constexpr int kTogether = 3;

/// Portable kernels, which have the number of heads from tiled_layout() otherwise.
class PortableTogether final : public Variant {
 public:
  explicit PortableTogether(const PortableShape& shape) : variant_(portable_variant(shape)) {}
  KernelSource source(const Work& work) const override { return variant_->source(work); }
  CallLayout layout(const Work& work) const override {
    CallLayout layout = variant_->layout(work);
    layout.heads_together = kTogether;
    return layout;
  }
  Prediction time(const Work& work, const DeviceRates& rates) const override { return variant_->time(work, rates); }
  std::string label(const Work& work) const override { return variant_->label(work); }
  void write(CanonicalWriter& out) const override { variant_->write(out); }
  bool is_same(const Variant& other) const override { return this == &other; }

 private:
  std::shared_ptr<const Variant> variant_;
};

HopperShape together(HopperShape shape) {
  shape.heads_together = kTogether;
  return shape;
}
AnyShape portable(const AttentionProblem& problem, Direction direction) {
  return std::make_shared<const PortableTogether>(portable_shape(problem, direction));
}
HopperShape hopper_shape(const AttentionProblem& problem, Direction direction) {
  return together(hopper_shapes(problem, direction).front());
}
AnyShape hopper(const AttentionProblem& problem, Direction direction) { return hopper_shape(problem, direction); }
/// A persistent kernel in forward, dQ accumulation in the kernel of dk and dv in backward.
HopperShape hopper_variant_shape(const AttentionProblem& problem, Direction direction) {
  constexpr std::int64_t kMultiprocessors = 5;
  return together(direction == Direction::kForward ? persistent_hopper_shape(problem, kMultiprocessors)
                                                   : hopper_fused_shape(problem));
}
AnyShape hopper_variants(const AttentionProblem& problem, Direction direction) {
  return hopper_variant_shape(problem, direction);
}

AnyShape in_order(HopperShape shape) {
  shape.ordered = true;
  return shape;
}
AnyShape ordered(const AttentionProblem& problem, Direction direction) {
  return in_order(hopper_shape(problem, direction));
}
AnyShape ordered_variants(const AttentionProblem& problem, Direction direction) {
  return in_order(hopper_variant_shape(problem, direction));
}

/// Several tiles of each of eight query heads over four KV heads.
checking::CheckCase many_heads() {
  std::vector<checking::CheckCase> cases = test::attention_kernels_cases(true);
  checking::CheckCase test = std::move(*std::ranges::find(cases, "plain f16", &checking::CheckCase::name));
  AttentionProblem& problem = test.problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 150;
  problem.seq_kv = 140;
  problem.program = Program::parse("value = score\nkeep = kv_idx <= q_idx");
  return test;
}

class TilesOfHeadsTogether : public ::testing::TestWithParam<ShapeFunction*> {};

TEST_P(TilesOfHeadsTogether, AreRight) {
  const checking::CheckCase test = many_heads();
  const ProblemInputs inputs = random_inputs(test.problem);
  test::expect_right(test::check_emulated(test, inputs, GetParam()));
  // Were two blocks' tiles the same, others would be left out.
  const test::EmulatedLaunches::Fault fault{"within % together, within / together", "0, within / together"};
  EXPECT_FALSE(test::check_emulated(test, inputs, GetParam(), {fault, fault}).passed());
}
INSTANTIATE_TEST_SUITE_P(Kernels, TilesOfHeadsTogether, ::testing::Values(portable, hopper, hopper_variants));

/// Global keys and queries, whose rows and columns of tiles are longer than others; of planes that documents' ids make.
checking::CheckCase uneven(bool by_operands) {
  checking::CheckCase test = many_heads();
  AttentionProblem& problem = test.problem;
  problem.batch = problem.heads_kv = 1;
  problem.heads_q = 2;
  problem.seq_q = 300;
  problem.seq_kv = 280;
  problem.program = Program::parse(
      by_operands ? "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y | kv_idx < 9"
                  : "value = score\nkeep = q_idx % 256 < 3 | kv_idx % 200 < 7 | abs(q_idx - kv_idx) < 30");
  for (const OperandDecl& decl : problem.program.operands())
    problem.operands.push_back(problem::default_spec(problem, decl));
  return test;
}

class OrderedTiles : public ::testing::TestWithParam<bool> {};

TEST_P(OrderedTiles, AreRight) {
  const checking::CheckCase test = uneven(GetParam());
  const ProblemInputs inputs = random_inputs(test.problem);
  for (ShapeFunction* const shape_of : {&ordered, &ordered_variants})
    test::expect_right(test::check_emulated(test, inputs, shape_of));
  // A row that is there twice leaves out another one.
  const test::EmulatedLaunches::Fault fault{"tiles + before] = i;", "tiles + before] = 0;"};
  EXPECT_FALSE(test::check_emulated(test, inputs, ordered, {fault, fault}).passed());
}
INSTANTIATE_TEST_SUITE_P(Masks, OrderedTiles, ::testing::Bool());

TEST(TileOrder, HasTheLongestRowsFirst) {
  // The first and the third of five tiles of 128 queries see all keys, the others a window.
  AttentionProblem problem = many_heads().problem;
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.seq_q = problem.seq_kv = 640;
  problem.backward = false;
  problem.index_offsets = true;  // so that the states are a call's
  problem.program = Program::parse("value = score\nkeep = q_idx // 128 % 2 == 0 & q_idx < 512 | q_idx == kv_idx");
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const test::EmulatedKernels kernels(compiled, Direction::kForward,
                                      ordered_variants(compiled.problem, Direction::kForward));
  const ProblemInputs inputs = random_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  std::vector<std::byte> workspace(kernels.kernels().workspace_bytes() + 16);
  const auto call = runtime::check_call(compiled.problem, buffers.forward(), {}, 0, host_memory());
  auto* const at = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 15) / 16 * 16);
  ArgumentBytes arguments = kernels.kernels().arguments(call.tensors, call.parameters, at);
  kernels.run(arguments, static_cast<unsigned>(test::test_seed()));
  const int* const order = arguments.call().order;
  EXPECT_EQ(std::vector<int>(order, order + 5), (std::vector{2, 0, 4, 3, 1}));
}

TEST(HeadsTogether, HaveBlocksOnTheDeviceAtOnce) {
  AttentionProblem problem;
  problem.heads_q = problem.heads_kv = 16;
  problem.dtype = DType::kBF16;
  problem.dim_qk = problem.dim_v = 128;
  const auto heads_of = [&](std::int64_t length, const char* keep) {
    problem.seq_q = problem.seq_kv = length;
    problem.program = Program::parse(concat("value = score", keep));
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const KernelCall kernels = test::attention_call(compiled, Direction::kForward,
                                                    hopper_shapes(compiled.problem, Direction::kForward).front());
    return kernels.arguments(ForwardTensors{}, {}, nullptr).call().heads_together;
  };
  constexpr const char* kCausal = "\nkeep = kv_idx <= q_idx";
  EXPECT_EQ(heads_of(4096, kCausal), 8);
  EXPECT_EQ(heads_of(1024, kCausal), 16);
  EXPECT_EQ(heads_of(16384, kCausal), 8);
  EXPECT_EQ(heads_of(65536, kCausal), 1);
  EXPECT_EQ(heads_of(4096, ""), 1);
}

}  // namespace
}  // namespace scoremod::backend::kernels
