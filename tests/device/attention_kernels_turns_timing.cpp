// Times of the attention kernels in one shape beside another, in turns.

#include <string>
#include <vector>

#include "backend/cuda/device/device.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "compiler/pipeline.hpp"
#include "device/attention_kernel_calls.hpp"

namespace scoremod::backend::kernels {
namespace {

/// The cases whose persistent kernels are timed beside those with a CTA for each tile, in turns.
constexpr const char* kPersistentTimed[] = {"full",
                                            "causal",
                                            "documents",
                                            "documents causal",
                                            "unequal documents",
                                            "window 512",
                                            "prefix 1024",
                                            "dilated 2",
                                            "2-d neighbourhood",
                                            "global 64 and window 512",
                                            "soft cap",
                                            "full, head dim 64",
                                            "documents, head dim 64",
                                            "documents causal, head dim 64",
                                            "causal, head dim 64",
                                            "window 512, head dim 64",
                                            "full, head dim 256",
                                            "causal, 16384",
                                            "causal, grouped heads",
                                            "causal, 512 of 64",
                                            "causal, 2048 of 64"};

class PersistentAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(PersistentAttentionKernelTimes, OfACase) {
  const Timed& timed = timed_problem(kPersistentTimed[GetParam()]);
  const AttentionProblem problem = problem_of(timed);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  time_forwards(timed, {hopper_shapes(problem, Direction::kForward).front(),
                        persistent_hopper_shape(problem, cuda::describe_current_device().multiprocessors)});
  if (problem.dim_qk > 128) return;  // no backward adds dq up beside dk and dv, or its kernel isn't persistent
  time_backwards(timed, {hopper_fused_shape(problem),
                         persistent_fused_shape(problem, cuda::describe_current_device().multiprocessors)});
}
INSTANTIATE_TEST_SUITE_P(Cases, PersistentAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kPersistentTimed))));

/// The cases whose kernels with a TMA-loaded bias are timed beside those that read each number, in turns. At head dim
/// 64 no backward has one.
constexpr const char* kCopiedTimed[] = {"bias", "bias, causal", "bias, head dim 64"};

class CopyingAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(CopyingAttentionKernelTimes, OfACase) {
  const Timed& timed = timed_problem(kCopiedTimed[GetParam()]);
  const AttentionProblem problem = problem_of(timed);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  const HopperShape copying = copying_hopper_shape(problem, loaded_bias(problem, Direction::kForward).value());
  HopperShape reading = copying;
  reading.loaded_bias.reset();
  time_forwards(timed, {hopper_shapes(problem, Direction::kForward).front(), reading, copying});
  if (const auto operand = loaded_bias(problem, Direction::kBackward)) {
    time_backwards(timed, {hopper_shapes(problem, Direction::kBackward).front(), hopper_fused_shape(problem),
                           copying_fused_shape(problem, *operand)});
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, CopyingAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kCopiedTimed))));

/// Both directions of these cases are timed with several orders of heads' tiles, in turns.
constexpr const char* kDealtTimed[] = {"full",
                                       "causal",
                                       "causal, 16384",
                                       "causal, grouped heads",
                                       "prefix 1024",
                                       "unequal documents",
                                       "global 64 and window 512"};

class TileOrderAttentionKernelTimes : public AttentionKernelTimes {};

std::vector<AnyShape> dealt(const HopperShape& shape) {
  std::vector<HopperShape> shapes;
  for (const int heads : {1, 0, 16}) {
    shapes.push_back(shape);
    shapes.back().heads_together = heads;
  }
  for (const int heads : {0, 16}) {
    shapes.push_back(shape);
    shapes.back().heads_together = heads;
    shapes.back().ordered = true;
  }
  return {shapes.begin(), shapes.end()};
}

TEST_P(TileOrderAttentionKernelTimes, OfACase) {
  const Timed& timed = timed_problem(kDealtTimed[GetParam()]);
  const AttentionProblem problem = problem_of(timed);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  time_forwards(timed, dealt(hopper_shapes(problem, Direction::kForward).front()));
  time_forwards(timed, dealt(persistent_hopper_shape(problem, cuda::describe_current_device().multiprocessors)));
  time_backwards(timed, dealt(hopper_fused_shape(problem)));
}
INSTANTIATE_TEST_SUITE_P(Cases, TileOrderAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kDealtTimed))));

/// The cases whose backward by two kernels is timed beside the fused one, which accumulates dQ in the kernel of dk and
/// dv, in turns.
constexpr const char* kLearnedTimed[] = {"learned slopes, causal",
                                         "learned t5 buckets",
                                         "learned relative table",
                                         "learned numbers of keys",
                                         "learned numbers of keys and heads",
                                         "learned slopes, head dim 64",
                                         "learned t5 buckets, head dim 64"};

class LearnedAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(LearnedAttentionKernelTimes, OfACase) {
  const Timed& timed = timed_problem(kLearnedTimed[GetParam()]);
  const AttentionProblem problem = problem_of(timed);
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  const std::vector<OperandTarget> targets = targets_of(compiled, Direction::kBackward);
  std::vector<HopperShape> shapes{hopper_backward_shape(problem, targets)};
  ASSERT_TRUE(hopper_fused_objections(problem, hopper_fused_shape(problem), targets).empty());
  shapes.push_back(hopper_fused_shape(problem));
  if (shapes.back().dq_order != DqOrder::kFenceAtOnce) {
    shapes.push_back(shapes.back());
    shapes.back().dq_order = DqOrder::kFenceAtOnce;
  }
  time_backwards(timed, {shapes.begin(), shapes.end()});
}
INSTANTIATE_TEST_SUITE_P(Cases, LearnedAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kLearnedTimed))));

/// The cases of heads that share KV heads, whose backward by two kernels is timed beside the fused one, in turns.
constexpr const char* kGroupedTimed[] = {"full, 64 heads over 8",
                                         "causal, 64 heads over 8",
                                         "causal, grouped heads",
                                         "window 512, 64 heads over 8",
                                         "documents causal, 64 heads over 8",
                                         "causal",
                                         "full"};

class GroupedAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(GroupedAttentionKernelTimes, OfACase) {
  const Timed& timed = timed_problem(kGroupedTimed[GetParam()]);
  const AttentionProblem problem = problem_of(timed);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  HopperShape turns = hopper_fused_shape(problem);
  turns.turn_ctas = static_cast<int>(cuda::describe_current_device().multiprocessors);
  time_backwards(timed, {hopper_shapes(problem, Direction::kBackward).front(), hopper_fused_shape(problem), turns});
}
INSTANTIATE_TEST_SUITE_P(Cases, GroupedAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kGroupedTimed))));

/// The cases of head dims 192 and 128, whose backward by separate kernels is timed beside the fused one, in turns.
constexpr const char* kWideTimed[] = {
    "full, head dims 192 and 128",      "causal, head dims 192 and 128",           "window 512, head dims 192 and 128",
    "documents, head dims 192 and 128", "documents causal, head dims 192 and 128", "soft cap, head dims 192 and 128"};

class WideAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(WideAttentionKernelTimes, OfACase) {
  const Timed& timed = timed_problem(kWideTimed[GetParam()]);
  const AttentionProblem problem = problem_of(timed);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  std::vector<HopperShape> forwards{hopper_shapes(problem, Direction::kForward).front(),
                                    persistent_hopper_shape(problem, cuda::describe_current_device().multiprocessors)};
  for (const HopperShape& shape : std::vector(forwards)) {
    forwards.push_back(shape);
    forwards.back().keys = 128;
  }
  time_forwards(timed, {forwards.begin(), forwards.end()});
  time_backwards(timed, {hopper_shapes(problem, Direction::kBackward).front(), hopper_fused_shape(problem)});
}
INSTANTIATE_TEST_SUITE_P(Cases, WideAttentionKernelTimes, ::testing::Range(0, static_cast<int>(std::size(kWideTimed))));

/// The cases for which a fused backward's orders of dQ accumulation are timed, in turns.
constexpr const char* kOrdersTimed[] = {"full", "causal", "documents", "soft cap", "full, head dim 64"};

class DqOrderAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(DqOrderAttentionKernelTimes, OfACase) {
  const Timed& timed = timed_problem(kOrdersTimed[GetParam()]);
  if (cuda::current_compute_capability() != kHopper) GTEST_SKIP() << "no device of compute capability 9.0";
  std::vector<HopperShape> shapes(3, hopper_fused_shape(problem_of(timed)));
  shapes[0].dq_order = DqOrder::kFenceAtOnce;
  shapes[1].dq_order = DqOrder::kLateFence;
  shapes[2].dq_order = DqOrder::kEarlyAdditions;
  time_backwards(timed, {shapes.begin(), shapes.end()});
}
INSTANTIATE_TEST_SUITE_P(Cases, DqOrderAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kOrdersTimed))));

}  // namespace
}  // namespace scoremod::backend::kernels
