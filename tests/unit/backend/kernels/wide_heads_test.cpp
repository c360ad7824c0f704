// Forwards of heads wider than 256: several launches write o's dims, each with a part of v's.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/portable/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "backend/memory_space.hpp"
#include "base/float16.hpp"
#include "compiler/pipeline.hpp"
#include "problem/row_addressing.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/test_seed.hpp"
#include "support/wide_heads_cases.hpp"

namespace scoremod::backend::kernels {
namespace {

DeviceProperties device(std::int64_t shared_memory = 232448) {
  DeviceProperties device;
  device.compute_capability = 90;
  device.multiprocessors = 6;
  device.shared_memory_per_block = shared_memory;
  return device;
}

/// The smallest devices have so much for a CTA.
constexpr std::int64_t kSmallestSharedBytes = std::int64_t{99} * 1024;

/// With a seed of this run, and with infinities and NaN, which reach their own rows alone.
void expect_right_in(const AnyShape& shape, const test::WideCase& from) {
  const checking::CheckCase test = test::check_case(from);
  SCOPED_TRACE(test.name);
  const auto shape_of = [&](const AttentionProblem&, Direction) { return shape; };
  RandomInputOptions options;
  options.seed = test::test_seed();
  test::expect_right(test::check_emulated(test, random_inputs(test.problem, options), shape_of));
  if (!from.dtype_kv) test::expect_right(test::check_emulated(test, test::poisoned_inputs(test.problem, 0), shape_of));
}

class WideHeads : public ::testing::TestWithParam<test::WideCase> {};

TEST_P(WideHeads, AreRight) {
  for (const PortableShape& shape : portable_shapes(test::check_case(GetParam()).problem, Direction::kForward))
    expect_right_in(shape, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Cases, WideHeads, ::testing::ValuesIn(test::kWideHeads));

class WideDecode : public ::testing::TestWithParam<test::WideCase> {};

TEST_P(WideDecode, AreRight) {
  const AttentionProblem problem = test::check_case(GetParam()).problem;
  std::vector<SplitKvShape> shapes = split_kv_shapes(problem, device());
  for (const SplitKvShape& shape : persistent_split_kv_shapes(problem, device())) shapes.push_back(shape);
  if (wide_split_kv_objections(problem).empty())
    expect_right_in(wide_split_kv_shape(problem, device().multiprocessors), GetParam());
  for (const SplitKvShape& shape : shapes) {
    if (shape.queries == 16) expect_right_in(shape, GetParam());
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, WideDecode, ::testing::ValuesIn(test::kWideDecodes));

std::vector<int> first_values(std::int64_t dim_v) {
  const compiler::CompiledProblem compiled =
      compiler::compile(test::check_case({"", 1, 40, 40, 64, dim_v, DType::kBF16}).problem);
  const Work work{compiled, Direction::kForward, {}};
  std::vector<int> firsts;
  const CallLayout layout = portable_variant(portable_shape(compiled.problem, Direction::kForward))->layout(work);
  for (const KernelLaunch& launch : layout.launches()) firsts.push_back(launch.first_value);
  return firsts;
}

TEST(WideHeadParts, CoverAllDims) {
  EXPECT_EQ(first_values(256), (std::vector{0}));
  EXPECT_EQ(first_values(257), (std::vector{0, 113}));  // of 144 dims each
  EXPECT_EQ(first_values(300), (std::vector{0, 140}));
  EXPECT_EQ(first_values(512), (std::vector{0, 256}));
  EXPECT_EQ(first_values(576), (std::vector{0, 192, 384}));
}

/// The checks above would see a part at a wrong place.
TEST(WideHeadParts, AreSeenAtAWrongPlace) {
  const checking::CheckCase test = test::check_case(test::kWideHeads[0]);
  PortableShape shape = portable_shape(test.problem, Direction::kForward);
  ++shape.value_parts;  // parts of 176 dims in a text of 256
  const auto shape_of = [&](const AttentionProblem&, Direction) { return shape; };
  const test::EmulatedFaults fault{.forward = {"kDimV = 176", "kDimV = 160"}};
  EXPECT_FALSE(test::check_emulated(test, random_inputs(test.problem), shape_of, fault).passed());
  test::expect_right(test::check_emulated(test, random_inputs(test.problem), shape_of));
}

/// A decode's outputs where k and v are views of one memory, or of two copies of it.
std::vector<std::uint16_t> shared_outputs(std::int64_t dim_qk, std::int64_t dim_v, bool copies) {
  AttentionProblem problem = test::check_case({"", 4, 1, 150, dim_qk, dim_v}).problem;
  problem.sink = Sink::kNone;
  problem.stats = problem.max_logit = false;
  problem.operands.clear();
  problem.program = Program::parse("value = score");
  const auto wider = dim_qk > dim_v ? problem::TensorRole::kK : problem::TensorRole::kV;
  const Strides rows = problem::RowAddressing(problem, wider).strides();
  (dim_qk > dim_v ? problem.v : problem.k).strides = rows;
  const auto numbers_of = [&](problem::TensorRole role) { return problem::bytes_of(problem, role) / 2; };
  std::vector<std::uint16_t> numbers(numbers_of(wider)), q(numbers_of(problem::TensorRole::kQ)),
      o(numbers_of(problem::TensorRole::kO), 0x7fff);
  std::mt19937 random(static_cast<unsigned>(test::test_seed()));
  for (std::vector<std::uint16_t>* tensor : {&numbers, &q})
    for (std::uint16_t& number : *tensor) number = encode_bf16(static_cast<float>(random() % 2001) / 1000.0F - 1.0F);
  const std::vector<std::uint16_t> copied = numbers;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const test::EmulatedKernels kernels(compiled, Direction::kForward, wide_split_kv_shape(problem, 2));
  const OwnedMemory workspace(host_memory(), kernels.kernels().workspace_bytes());
  ForwardTensors tensors;
  tensors.q = q.data();
  tensors.k = numbers.data();
  tensors.v = copies ? copied.data() : numbers.data();
  tensors.o = o.data();
  CallParameters parameters;
  parameters.scale = problem.effective_scale();
  kernels.run(kernels.kernels().arguments(tensors, parameters, workspace.data()), 1);
  return o;
}

TEST(WideDecodeViews, ReadsWhatIsThereWhereKeysAndValuesShareMemory) {
  EXPECT_EQ(shared_outputs(576, 512, false), shared_outputs(576, 512, true)) << "values are a part of the keys";
  EXPECT_EQ(shared_outputs(512, 512, false), shared_outputs(512, 512, true)) << "values are the keys";
  EXPECT_EQ(shared_outputs(64, 512, false), shared_outputs(64, 512, true)) << "keys are a part of the values";
}

/// The checks above would see what no warpgroup waits for, or has of another one.
class WideDecodeFaults : public ::testing::TestWithParam<test::EmulatedLaunches::Fault> {};

TEST_P(WideDecodeFaults, AreSeen) {
  const auto* two_tiles = std::ranges::find(test::kWideDecodes, 128, &test::WideCase::heads_q);
  const checking::CheckCase test = test::check_case(*two_tiles);
  const auto shape_of = [&](const AttentionProblem& problem, Direction) {
    return wide_split_kv_shape(problem, device().multiprocessors);
  };
  const test::EmulatedFaults fault{.forward = GetParam()};
  EXPECT_FALSE(test::check_emulated(test, random_inputs(test.problem), shape_of, fault).passed());
}
INSTANTIATE_TEST_SUITE_P(
    Texts, WideDecodeFaults,
    ::testing::Values(
        test::EmulatedLaunches::Fault{"return moved_by(ring, stage * WideTiles::kTileBytes)",
                                      "return moved_by(ring, 0 * stage)"},
        test::EmulatedLaunches::Fault{"first_dim() / 64 * kKeys * 128", "0"},
        test::EmulatedLaunches::Fault{"if (ballot(pair.low != 1.0f || pair.high != 1.0f) != 0)", "if (false)"},
        test::EmulatedLaunches::Fault{"rows.sum[0][half] = float_of_bits(words[half][1]);", ""},
        // Not 0: a walk that begins behind a tile's last chunk goes on to the next tile by itself.
        test::EmulatedLaunches::Fault{"row_tile = (int)(at / of_row_tile);", "row_tile = 1;"},
        test::EmulatedLaunches::Fault{"step.tile / 2 * kKeys + i * kBoxRows;", "step.tile / 2 * kKeys;"}));

/// The checks would see wrong places of pages that TMA loads.
class WideDecodePageFaults : public ::testing::TestWithParam<test::EmulatedLaunches::Fault> {};

TEST_P(WideDecodePageFaults, AreSeen) {
  const auto* pages = std::ranges::find(test::kWideDecodes, 64, &test::WideCase::page);
  const checking::CheckCase test = test::check_case(*pages);
  const auto shape_of = [&](const AttentionProblem& problem, Direction) {
    return wide_split_kv_shape(problem, device().multiprocessors);
  };
  const test::EmulatedFaults fault{.forward = GetParam()};
  EXPECT_FALSE(test::check_emulated(test, random_inputs(test.problem), shape_of, fault).passed());
}
INSTANTIATE_TEST_SUITE_P(Texts, WideDecodePageFaults,
                         ::testing::Values(test::EmulatedLaunches::Fault{"row[i] %= kBlockRows;", "row[i] = 0;"},
                                           test::EmulatedLaunches::Fault{
                                               "batch[i] = clamped(*page, 0, tensor.count - 1);",
                                               "batch[i] = step.b;"}));

TEST(WideHeadParts, FitEveryDevice) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const compiler::CompiledProblem compiled =
        compiler::compile(test::check_case({"", 4, 40, 40, 576, 512, dtype}).problem);
    const Work work{compiled, Direction::kForward, {}};
    const PortableShape last = portable_shapes(compiled.problem, Direction::kForward).back();
    EXPECT_EQ(memory_objections(portable_variant(last)->layout(work).launches(), device(kSmallestSharedBytes)).size(),
              0U);
  }
  const AttentionProblem problem = test::check_case(test::kWideDecodes[0]).problem;
  const SplitKvShape few = split_kv_shapes(problem, device(kSmallestSharedBytes)).front();
  EXPECT_LE(static_cast<std::int64_t>(split_kv_shared_bytes(few, 576, 512)), kSmallestSharedBytes);
}

TEST(WideHeadParts, AreRefusedByWhatHasNone) {
  const compiler::CompiledProblem compiled = compiler::compile(test::check_case({"", 4, 40, 40, 576, 512}).problem);
  const DeviceProperties hopper = device();
  const Work work{compiled, Direction::kForward, {}};
  EXPECT_EQ(kPortableFamily.objections(work, &hopper).size(), 0U);
  EXPECT_EQ(kSplitKvFamily.objections(work, &hopper).size(), 0U);
  EXPECT_EQ(kHopperFamily.objections(work, &hopper).size(), 1U);
  const compiler::CompiledProblem wider = compiler::compile(test::check_case({"", 4, 40, 40, 584, 512}).problem);
  EXPECT_EQ(kPortableFamily.objections({wider, Direction::kForward, {}}, &hopper).size(), 1U);
}

}  // namespace
}  // namespace scoremod::backend::kernels
