#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "scoremod/inputs.hpp"
#include "scoremod/zoo.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/modules/kernel_cache.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/float8/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "check/check_memory.hpp"
#include "check/check_subject.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_cases.hpp"
#include "device/device_fixture.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/call_tensors.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/float8_cases.hpp"
#include "support/loaded_bias_cases.hpp"
#include "support/paged_decode_cases.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"
#include "support/wide_heads_cases.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr int kRandomProblems = 24;
constexpr int kHopperCapability = 90;
constexpr std::array kDTypes{DType::kF16, DType::kBF16, DType::kF32};

/// Which kernels run: of Hopper ones those where there are some. kFused are kHopper's, but for a kernel of dk and dv
/// that adds dq up beside them where there is one.
enum class Kernels { kHopper, kFused, kPortable };
constexpr std::array kAllKernels{Kernels::kHopper, Kernels::kFused, Kernels::kPortable};
Kernels kernels_of(int parameter) { return kAllKernels[static_cast<std::size_t>(parameter) % kAllKernels.size()]; }

AnyShape shape_of(const AttentionProblem& problem, Direction direction, Kernels kernels) {
  if (kernels == Kernels::kPortable ||
      !hopper_objections(problem, direction, cuda::current_compute_capability()).empty())
    return portable_shape(problem, direction);
  const bool fused = kernels == Kernels::kFused && direction == Direction::kBackward;
  return fused && hopper_fused_objections(problem, hopper_fused_shape(problem)).empty()
             ? hopper_fused_shape(problem)
             : hopper_shapes(problem, direction).front();
}

/// Plans of both directions as something that check_subject() runs.
class Plans {
 public:
  Plans(const compiler::CompiledProblem& compiled, Kernels kernels)
      : Plans(compiled, {shape_of(compiled.problem, Direction::kForward, kernels),
                         shape_of(compiled.problem, Direction::kBackward, kernels)}) {}
  /// Makes the forward and the backward.
  Plans(const compiler::CompiledProblem& compiled, const std::array<AnyShape, 2>& shapes) : problem_(compiled.problem) {
    const auto& [forward, backward] = shapes;
    forward_ = forward_plan(test::attention_call(compiled, Direction::kForward, forward),
                            image(compiled, Direction::kForward, forward));
    if (compiled.backward)
      backward_ = backward_plan(test::attention_call(compiled, Direction::kBackward, backward),
                                image(compiled, Direction::kBackward, backward));
    const KernelTraits traits = traits_of(backward);
    families_ = concat(traits_of(forward).name, " and ", traits.fused ? "fused " : "", traits.name,
                       traits.loaded_bias ? " with a TMA-loaded bias" : "");
  }
  /// Makes a forward alone.
  Plans(const compiler::CompiledProblem& compiled, const AnyShape& forward)
      : problem_(compiled.problem),
        forward_rounding_(kernels_backend().forward_rounding(compiled)),
        forward_(forward_plan(test::attention_call(compiled, Direction::kForward, forward),
                              image(compiled, Direction::kForward, forward))) {
    const CallLayout layout = tiled_variant(forward)->layout({compiled, Direction::kForward, {}});
    families_ = concat(traits_of(forward).name, ", ", tile_of(forward).queries, " rows, ", layout.splits, " splits, ",
                       layout.blocks, " persistent CTAs");
  }
  const std::string& families() const { return families_; }

  checking::Subject subject() const {
    checking::Subject subject;
    subject.backend = "kernels";
    subject.memory = &cuda::cuda_memory();
    subject.function_error = kernels_backend().function_error();
    subject.forward_rounding = forward_rounding_;
    subject.forward_workspace_bytes = forward_->workspace_bytes();
    subject.forward = [this](const ForwardArgs& args, Buffer workspace) {
      const runtime::ForwardCall call =
          runtime::check_call(problem_, args, workspace, forward_->workspace_bytes(), cuda::cuda_memory());
      forward_->execute(call.tensors, call.parameters, {static_cast<std::byte*>(workspace.data), workspace.bytes});
      cuda::wait_for_own_stream();
    };
    if (!backward_) return subject;
    subject.backward_workspace_bytes = backward_->workspace_bytes();
    subject.backward = [this](const BackwardArgs& args, Buffer workspace) {
      const runtime::BackwardCall call =
          runtime::check_call(problem_, args, workspace, backward_->workspace_bytes(), cuda::cuda_memory());
      backward_->execute(call.tensors, call.parameters, {static_cast<std::byte*>(workspace.data), workspace.bytes});
      cuda::wait_for_own_stream();
    };
    return subject;
  }

 private:
  static std::shared_ptr<LoadedModules> image(const compiler::CompiledProblem& compiled, Direction direction,
                                              const AnyShape& shape) {
    return std::make_shared<LoadedModules>(std::vector<std::string>{cuda::cached_kernels(
        render_all(attention_source(compiled, direction, shape)), tiled_variant(shape)->instructions())});
  }

  const AttentionProblem& problem_;
  const ForwardRounding forward_rounding_ = {};
  std::unique_ptr<ForwardPlan> forward_;
  std::unique_ptr<BackwardPlan> backward_;
  std::string families_;
};

/// Gradients of operands are other kernels'. `cut` is a Kernels, shapes of both directions, or that of a forward.
template <class Cut>
void expect_right(const Cut& cut, checking::CheckCase test, const std::optional<ProblemInputs>& given = {}) {
  SCOPED_TRACE(test.name + "\n" + test.problem.program.to_string());
  for (OperandSpec& operand : test.problem.operands) operand.gradient = false;
  const compiler::CompiledProblem compiled = compiler::compile(test.problem);
  const Direction last = compiled.backward ? Direction::kBackward : Direction::kForward;
  const std::vector<UnsupportedReason> reasons =
      problem_objections(compiled, last, is_float8(test.problem.dtype) ? Float8::kAll : Float8::kKeys);
  if (!reasons.empty()) GTEST_SKIP() << reasons.front().text;
  RandomInputOptions inputs;
  inputs.seed = test.seed;
  inputs.overrides = test.fills;
  CheckOptions options;
  options.call = test.call;
  options.seed = test.seed;
  const Plans plans(compiled, cut);
  test::record(
      test.name, concat("attention kernels, ", plans.families()),
      checking::check_subject(compiled, plans.subject(), given ? *given : random_inputs(test.problem, inputs), options),
      "");
}

/// Runs both directions in each cut, and compares every number that is written.
template <class Cut>
void expect_same_bits(const std::array<Cut, 2>& cuts, AttentionProblem problem, CallOptions call,
                      const std::optional<ProblemInputs>& given = {}) {
  // Memory is filled and fetched there, and no other stream waits for it.
  call.stream = cuda::own_stream();
  for (OperandSpec& operand : problem.operands) operand.gradient = false;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const ProblemInputs inputs = given ? *given : random_inputs(problem);
  std::array<std::vector<std::vector<std::uint64_t>>, 2> found;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const Plans plans(compiled, cuts[i]);
    const checking::Subject subject = plans.subject();
    auto& outputs = found[i];
    checking::CheckMemory memory(problem, inputs, 0, cuda::cuda_memory());
    memory.send();
    const backend::OwnedMemory workspace(cuda::cuda_memory(),
                                         std::max(subject.forward_workspace_bytes, subject.backward_workspace_bytes));
    const Buffer scratch{workspace.data(), workspace.bytes()};
    subject.forward(memory.forward_args(call), scratch);
    if (subject.backward) subject.backward(memory.backward_args(call), scratch);
    memory.fetch();
    const auto keep = [&](const checking::GuardedBuffer& output) {
      outputs.emplace_back();
      for (const double value : output.values()) outputs.back().push_back(std::bit_cast<std::uint64_t>(value));
    };
    for (const auto* output : {&memory.o, &memory.lse}) keep(*output);
    if (memory.max_logit) keep(*memory.max_logit);
    if (!subject.backward) continue;
    for (const auto* output : {&memory.dq, &memory.dk, &memory.dv}) keep(*output);
  }
  ASSERT_EQ(found[0].size(), found[1].size());
  for (std::size_t output = 0; output < found[0].size(); ++output) {
    const auto [one, other] = std::mismatch(found[0][output].begin(), found[0][output].end(), found[1][output].begin(),
                                            found[1][output].end());
    if (one == found[0][output].end()) continue;
    ADD_FAILURE() << "output " << output << " differs at element " << one - found[0][output].begin() << " of "
                  << found[0][output].size() << ": " << std::bit_cast<double>(*one) << " and "
                  << std::bit_cast<double>(*other);
  }
}

/// Runs each case by all kernels, in turns.
class AttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  static checking::CheckCase test_case() {
    return test::attention_kernels_cases()[static_cast<std::size_t>(GetParam()) / kAllKernels.size()];
  }
  static Kernels kernels() { return kernels_of(GetParam()); }
};

TEST_P(AttentionKernels, AreRight) { expect_right(kernels(), test_case()); }
TEST_P(AttentionKernels, AreRightWithInfinitiesAndNan) {
  const checking::CheckCase test = test_case();
  expect_right(kernels(), test, test::poisoned_inputs(test.problem, test.seed));
}

TEST_P(AttentionKernels, GiveTheSameBitsEachTime) {
  const checking::CheckCase test = test_case();
  if (kernels() == Kernels::kFused) GTEST_SKIP() << "CTAs add to dq in no fixed order";
  expect_same_bits(std::array{kernels(), kernels()}, test.problem, test.call);
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionKernels,
                         ::testing::Range(0, static_cast<int>(test::attention_kernels_cases().size() *
                                                              kAllKernels.size())));

/// Runs each FP8 case by FP8 products.
class Float8AttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  static checking::CheckCase test_case() { return test::float8_cases()[static_cast<std::size_t>(GetParam())]; }
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped() && cuda::current_compute_capability() != kHopperCapability) GTEST_SKIP() << "no Hopper kernels";
  }
};

TEST_P(Float8AttentionKernels, AreRight) {
  const checking::CheckCase test = test_case();
  expect_right(AnyShape(float8_shape(test.problem)), test);
}
TEST_P(Float8AttentionKernels, AreRightWithNan) {
  const checking::CheckCase test = test_case();
  expect_right(AnyShape(float8_shape(test.problem)), test, test::poisoned_inputs(test.problem, test.seed));
}
TEST_P(Float8AttentionKernels, GiveTheSameBitsEachTime) {
  const checking::CheckCase test = test_case();
  const AnyShape shape = float8_shape(test.problem);
  expect_same_bits(std::array{shape, shape}, test.problem, test.call);
}
INSTANTIATE_TEST_SUITE_P(Cases, Float8AttentionKernels,
                         ::testing::Range(0, static_cast<int>(test::float8_cases().size())));

constexpr int kPortableShapes = 6;            ///< of split_kv_shapes()
constexpr int kShapes = kPortableShapes + 2;  ///< with those of hopper_split_kv_shapes()
/// Runs each case in each shape, with as many splits as the device has room for, and with an odd number of them.
class SplitKvAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  static checking::CheckCase test_case() {
    return test::split_kv_cases()[static_cast<std::size_t>(GetParam() / kShapes)];
  }
  static SplitKvShape shape(const AttentionProblem& problem) {
    const DeviceProperties device = cuda::describe_current_device();
    std::vector<SplitKvShape> shapes = split_kv_shapes(problem, device);
    for (const SplitKvShape& shape : hopper_split_kv_shapes(problem, device.multiprocessors)) shapes.push_back(shape);
    SplitKvShape shape = shapes[static_cast<std::size_t>(GetParam() % kShapes)];
    if (shape.splits > 1 && GetParam() / kShapes % 2 != 0) shape.splits = 3;
    return shape;
  }
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || GetParam() % kShapes < kPortableShapes) return;
    // The planner refuses more rows than a tile has, pages and FP8. Tensors that TMA cannot load must be right too.
    const AttentionProblem problem = compiler::compile(test_case().problem).problem;
    if (problem.paged || problem.dtype_kv || cuda::current_compute_capability() != kHopperCapability)
      GTEST_SKIP() << "no Hopper kernels";
  }
};

TEST_P(SplitKvAttentionKernels, AreRight) {
  const checking::CheckCase test = test_case();
  expect_right(shape(test.problem), test);
}
TEST_P(SplitKvAttentionKernels, AreRightWithInfinitiesAndNan) {
  const checking::CheckCase test = test_case();
  expect_right(shape(test.problem), test, test::poisoned_inputs(test.problem, test.seed));
}
TEST_P(SplitKvAttentionKernels, GiveTheSameBitsEachTime) {
  const checking::CheckCase test = test_case();
  expect_same_bits(std::array{shape(test.problem), shape(test.problem)}, test.problem, test.call);
}
INSTANTIATE_TEST_SUITE_P(Cases, SplitKvAttentionKernels,
                         ::testing::Range(0, static_cast<int>(test::split_kv_cases().size()) * kShapes));

/// Runs each case with lengths in device memory by the persistent kernel, with as many CTAs as run at once and with
/// few.
class PersistentSplitKvAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int kPersistentShapes = 6;
  static checking::CheckCase test_case() {
    return test::split_kv_cases()[static_cast<std::size_t>(GetParam() / kPersistentShapes)];
  }
  static SplitKvShape shape(const AttentionProblem& problem) {
    const auto number = static_cast<std::size_t>(GetParam() % kPersistentShapes);
    SplitKvShape shape = persistent_split_kv_shapes(problem, cuda::describe_current_device()).at(number / 2);
    if (number % 2 != 0) shape.persistent_ctas = 5;
    return shape;
  }
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    const auto shapes = persistent_split_kv_shapes(test_case().problem, cuda::describe_current_device());
    if (static_cast<std::size_t>(GetParam() % kPersistentShapes / 2) >= shapes.size())
      GTEST_SKIP() << "no such shape, or all sequences have as many keys";
  }
};

TEST_P(PersistentSplitKvAttentionKernels, AreRight) {
  const checking::CheckCase test = test_case();
  expect_right(shape(test.problem), test);
}
TEST_P(PersistentSplitKvAttentionKernels, AreRightWithInfinitiesAndNan) {
  const checking::CheckCase test = test_case();
  expect_right(shape(test.problem), test, test::poisoned_inputs(test.problem, test.seed));
}
TEST_P(PersistentSplitKvAttentionKernels, GiveTheSameBitsEachTime) {
  const checking::CheckCase test = test_case();
  expect_same_bits(std::array{shape(test.problem), shape(test.problem)}, test.problem, test.call);
}
INSTANTIATE_TEST_SUITE_P(Cases, PersistentSplitKvAttentionKernels,
                         ::testing::Range(0, static_cast<int>(test::split_kv_cases().size()) * 6));

/// Runs each case that the streamed decode kernel is for, with as many CTAs as the device has multiprocessors and with
/// few.
class StreamedSplitKvAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  static checking::CheckCase test_case() { return test::split_kv_cases()[static_cast<std::size_t>(GetParam() / 2)]; }
  static SplitKvShape shape(const AttentionProblem& problem) {
    SplitKvShape shape = streamed_split_kv_shape(kStreamedWarps, problem, cuda::describe_current_device());
    if (GetParam() % 2 != 0) shape.persistent_ctas = 5;
    return shape;
  }
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    const AttentionProblem problem = test_case().problem;
    if (!has_lengths_in_memory(problem) || !streamed_split_kv_objections(problem).empty())
      GTEST_SKIP() << "there is no such kernel";
  }
};
TEST_P(StreamedSplitKvAttentionKernels, AreRight) {
  const checking::CheckCase test = test_case();
  expect_right(shape(test.problem), test);
  expect_right(shape(test.problem), test, test::poisoned_inputs(test.problem, test.seed));
}
TEST_P(StreamedSplitKvAttentionKernels, GiveTheSameBitsEachTime) {
  const checking::CheckCase test = test_case();
  expect_same_bits(std::array{shape(test.problem), shape(test.problem)}, test.problem, test.call);
}
INSTANTIATE_TEST_SUITE_P(Cases, StreamedSplitKvAttentionKernels,
                         ::testing::Range(0, static_cast<int>(test::split_kv_cases().size()) * 2));

/// Short sequences, some of them empty, of which teams take whole tiles of rows; and with a long one, even shares.
class StreamedSplitKvByLengths : public test::OnDevice {};
TEST_F(StreamedSplitKvByLengths, AreRight) {
  for (const std::int64_t queries : {1, 4}) {
    const checking::CheckCase test = test::paged_case({150, 8, 2, queries, 600, 128, 16});
    std::vector<std::int32_t> lengths(150);
    for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(i * 37 % 200);
    for (const bool has_long : {false, true}) {
      if (has_long) lengths[3] = 600;
      for (const int ctas : {2, 7, 132}) {
        SplitKvShape shape = streamed_split_kv_shape(kStreamedWarps, test.problem, cuda::describe_current_device());
        shape.persistent_ctas = ctas;
        expect_right(shape, test, test::inputs_of(test, lengths));
      }
    }
  }
}

/// Runs the forwards of heads wider than 256 in each shape.
class WideAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<test::WideCase> {
 protected:
  template <class Shape>
  static void expect_right_in(const std::vector<Shape>& shapes) {
    const checking::CheckCase test = test::check_case(GetParam());
    for (const Shape& shape : shapes) {
      expect_right(shape, test);
      if (!test.problem.dtype_kv) expect_right(shape, test, test::poisoned_inputs(test.problem, test.seed));
    }
  }
};
TEST_P(WideAttentionKernels, AreRight) {
  expect_right_in(portable_shapes(test::check_case(GetParam()).problem, Direction::kForward));
}
INSTANTIATE_TEST_SUITE_P(Cases, WideAttentionKernels, ::testing::ValuesIn(test::kWideHeads));

class WideSplitKvAttentionKernels : public WideAttentionKernels {};
TEST_P(WideSplitKvAttentionKernels, AreRight) {
  const AttentionProblem problem = test::check_case(GetParam()).problem;
  const DeviceProperties device = cuda::describe_current_device();
  expect_right_in(split_kv_shapes(problem, device));
  expect_right_in(persistent_split_kv_shapes(problem, device));
  if (device.compute_capability == kHopperCapability && wide_split_kv_objections(problem).empty())
    expect_right_in(std::vector{wide_split_kv_shape(problem, device.multiprocessors), wide_split_kv_shape(problem, 3)});
}
INSTANTIATE_TEST_SUITE_P(Cases, WideSplitKvAttentionKernels, ::testing::ValuesIn(test::kWideDecodes));

/// Runs the forward of each case by a persistent kernel, with few CTAs, and with as many as the device has
/// multiprocessors.
class PersistentAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int kFewBlocks = 3;

  static checking::CheckCase test_case() {
    checking::CheckCase test = test::attention_kernels_cases()[static_cast<std::size_t>(GetParam() / 2)];
    test.problem.backward = false;
    return test;
  }
  static HopperShape shape(const AttentionProblem& problem) {
    return persistent_hopper_shape(problem,
                                   GetParam() % 2 == 0 ? kFewBlocks : cuda::describe_current_device().multiprocessors);
  }
  static bool has_hopper(const AttentionProblem& problem) {
    return hopper_objections(compiler::compile(problem).problem, Direction::kForward,
                             cuda::current_compute_capability())
        .empty();
  }
};

TEST_P(PersistentAttentionKernels, AreRight) {
  const checking::CheckCase test = test_case();
  if (!has_hopper(test.problem)) GTEST_SKIP() << "no Hopper kernels";
  expect_right(shape(test.problem), test);
  expect_right(shape(test.problem), test, test::poisoned_inputs(test.problem, test.seed));
}
TEST_P(PersistentAttentionKernels, GiveTheBitsOfABlockForEachTile) {
  const checking::CheckCase test = test_case();
  if (!has_hopper(test.problem)) GTEST_SKIP() << "no Hopper kernels";
  std::array shapes{shape(test.problem), shape(test.problem)};
  shapes[1].persistent_ctas = 0;
  expect_same_bits(shapes, test.problem, test.call);
  expect_same_bits(shapes, test.problem, test.call, test::poisoned_inputs(test.problem, test.seed));
}
INSTANTIATE_TEST_SUITE_P(Cases, PersistentAttentionKernels,
                         ::testing::Range(0, static_cast<int>(test::attention_kernels_cases().size()) * 2));

/// Forwards that copy tiles of an operand ahead.
class CopyingAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<std::size_t> {
 protected:
  static checking::CheckCase test_case() { return test::loaded_bias_cases()[GetParam()]; }
  static HopperShape shape(const AttentionProblem& problem) {
    return copying_hopper_shape(problem, loaded_bias(problem, Direction::kForward).value());
  }
};

TEST_P(CopyingAttentionKernels, AreRightAndGiveTheBitsOfReads) {
  const checking::CheckCase test = test_case();
  if (cuda::current_compute_capability() != kHopperCapability) GTEST_SKIP() << "no Hopper kernels";
  const ProblemInputs poisoned = test::poisoned_inputs(test.problem, test.seed);
  const HopperShape copying = shape(test.problem);
  expect_right(copying, test);
  expect_right(copying, test, poisoned);
  HopperShape reading = copying;
  reading.loaded_bias.reset();
  expect_same_bits(std::array{copying, reading}, test.problem, test.call);
  expect_same_bits(std::array{copying, reading}, test.problem, test.call, poisoned);
}
INSTANTIATE_TEST_SUITE_P(Cases, CopyingAttentionKernels,
                         ::testing::Range(std::size_t{0}, test::loaded_bias_cases().size()));

/// Fused backwards that do.
class CopyingBackwardAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(CopyingBackwardAttentionKernels, AreRight) {
  const checking::CheckCase test = test::loaded_bias_backward_cases()[GetParam()];
  if (cuda::current_compute_capability() != kHopperCapability) GTEST_SKIP() << "no Hopper kernels";
  const AttentionProblem problem = compiler::compile(test.problem).problem;
  const std::array<AnyShape, 2> shapes{
      hopper_shapes(problem, Direction::kForward).front(),
      copying_fused_shape(problem, loaded_bias(problem, Direction::kBackward).value())};
  expect_right(shapes, test);
  expect_right(shapes, test, test::poisoned_inputs(test.problem, test.seed));
}
INSTANTIATE_TEST_SUITE_P(Cases, CopyingBackwardAttentionKernels,
                         ::testing::Range(std::size_t{0}, test::loaded_bias_backward_cases().size()));

/// Operands in device memory are not validated, so numbers out of range must lead nowhere. compute-sanitizer, or a
/// fault of the device, shows reads and writes outside.
class AttentionKernelBounds : public test::OnDevice, public ::testing::WithParamInterface<int> {};

TEST_P(AttentionKernelBounds, StayInsideTheirTensorsForAllRuntimeArguments) {
  for (const checking::CheckCase& test : test::attention_kernels_cases()) {
    if (!test.problem.tokens_q && !test.problem.tokens_kv && !test.problem.paged && !test.problem.lengths.kv) continue;
    AttentionProblem problem = test.problem;
    for (OperandSpec& operand : problem.operands) operand.gradient = false;
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const Plans plans(compiled, kernels_of(GetParam()));
    ProblemInputs inputs = random_inputs(problem);
    for (const std::int32_t number : {1'000'000, -2'000'000'000}) {
      for (OwnedOperand& operand : inputs.operands) {
        if (problem::spec_of(compiled.problem, *problem::operand_number(compiled.problem.program, operand.name))
                .dtype != DType::kI32)
          continue;
        for (std::size_t i = 0; i < operand.bytes.size() / sizeof number; ++i)
          store_element(operand.bytes.data(), DType::kI32, static_cast<std::int64_t>(i), i % 2 == 0 ? number : 1);
      }
      checking::CheckMemory memory(compiled.problem, inputs, 0, cuda::cuda_memory());
      for (checking::GuardedBuffer* output : {&memory.o, &memory.lse, &memory.dq, &memory.dk, &memory.dv})
        output->expect_output();
      if (memory.max_logit) memory.max_logit->expect_output();
      memory.send();
      const checking::Subject subject = plans.subject();
      const backend::OwnedMemory workspace(cuda::cuda_memory(),
                                           std::max(subject.forward_workspace_bytes, subject.backward_workspace_bytes));
      const Buffer scratch{workspace.data(), workspace.bytes()};
      EXPECT_NO_THROW(subject.forward(memory.forward_args(test.call), scratch)) << test.name;
      if (subject.backward) {
        EXPECT_NO_THROW(subject.backward(memory.backward_args(test.call), scratch)) << test.name;
      }
      memory.fetch();
      for (const checking::GuardedBuffer* buffer : memory.all())
        EXPECT_EQ(buffer->damage().value_or(""), "") << test.name << ", " << buffer->tensor().name;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionKernelBounds, ::testing::Range(0, static_cast<int>(kAllKernels.size())));

class ZooAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {};

TEST_P(ZooAttentionKernels, AreRight) {
  const std::string name = zoo::entries()[static_cast<std::size_t>(GetParam())].name;
  for (const Kernels kernels : kAllKernels)
    expect_right(kernels, test::zoo_problem(name, GetParam(), kDTypes[static_cast<std::size_t>(GetParam()) % 3]));
}
INSTANTIATE_TEST_SUITE_P(Zoo, ZooAttentionKernels, ::testing::Range(0, static_cast<int>(zoo::entries().size())));

class RandomAttentionKernels : public test::OnDevice, public ::testing::WithParamInterface<int> {};

TEST_P(RandomAttentionKernels, AreRight) {
  const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(GetParam());
  checking::RandomProblemOptions options;
  options.dtypes = {kDTypes.begin(), kDTypes.end()};
  options.max_scores = 40000;
  options.ragged_probability = options.paged_probability = options.output_dtype_probability = 0.2;
  options.gradient_layout_probability = 0.3;
  options.few_rows_probability = 0.1;
  checking::CheckCase test = checking::random_problem(seed, options);
  test.name = concat("seed ", seed);
  for (const Kernels kernels : kAllKernels) expect_right(kernels, test);
}
INSTANTIATE_TEST_SUITE_P(Problems, RandomAttentionKernels, ::testing::Range(0, kRandomProblems));

}  // namespace
}  // namespace scoremod::backend::kernels
