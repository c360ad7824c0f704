// Times of the attention kernels for the shapes that a tile may have, and for decode.

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/device/device.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "compiler/pipeline.hpp"
#include "device/attention_kernel_calls.hpp"

namespace scoremod::backend::kernels {
namespace {

struct TimedShape {
  const Timed* timed;
  Direction direction;
  AnyShape shape;
};

std::vector<TimedShape> timed_shapes() {
  const std::vector<PortableShape> forward_shapes{
      {{.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .blocks = 2}},
      {{.warps = 4, .row_tiles = 2, .queries = 128, .keys = 32, .blocks = 2}},
      {{.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .blocks = 3}},
  };
  // Then come step, part and key_step.
  const std::vector<PortableShape> backward_shapes{
      {{.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .blocks = 2}, 64, 64, 32},
      {{.warps = 4, .row_tiles = 2, .queries = 128, .keys = 64, .blocks = 2}, 32, 32, 32},
      {{.warps = 4, .row_tiles = 1, .queries = 64, .keys = 64, .blocks = 2}, 64, 32, 64},
  };
  const std::vector<PortableShape> float_forward_shapes{
      {{.row_tiles = 1, .queries = 64, .keys = 32, .element_bytes = 4, .blocks = 3}},
      {{.row_tiles = 1, .queries = 64, .keys = 64, .element_bytes = 4}},
      {{.row_tiles = 2, .queries = 128, .keys = 64, .element_bytes = 4, .blocks = 1}},
  };
  const std::vector<PortableShape> float_backward_shapes{
      {{.element_bytes = 4}, 8, 8, 8},
      {{.element_bytes = 4}, 16, 8, 16},
      {{.row_tiles = 2, .queries = 128, .element_bytes = 4, .blocks = 1}, 32, 32, 16},
      {{.element_bytes = 4, .blocks = 1}, 32, 32, 32},
  };
  std::vector<TimedShape> all;
  for (const Timed& timed : timed_problems()) {
    const AttentionProblem problem = problem_of(timed);
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (!timed.learned) all.push_back({&timed, direction, portable_shape(problem, direction)});
      if (timed.learned && direction == Direction::kForward) continue;
      if (hopper_objections(problem, direction, kHopper).empty()) {
        const bool forward = direction == Direction::kForward;
        all.push_back({&timed, direction,
                       forward ? hopper_shapes(problem, direction).front()
                               : hopper_backward_shape(problem, targets_of(compiler::compile(problem), direction))});
      }
      const bool fused = direction == Direction::kBackward && !timed.learned &&
                         hopper_objections(problem, direction, kHopper).empty() &&
                         hopper_fused_objections(problem, hopper_fused_shape(problem)).empty();
      if (fused) all.push_back({&timed, direction, hopper_fused_shape(problem)});
    }
    if (timed.name == std::string("full f32")) {
      for (const PortableShape& shape : float_forward_shapes) all.push_back({&timed, Direction::kForward, shape});
      for (const PortableShape& shape : float_backward_shapes) all.push_back({&timed, Direction::kBackward, shape});
    }
    // Every shape where nothing else takes time.
    if (&timed >= timed_problems().data() + 2) continue;
    for (const PortableShape& shape : forward_shapes) all.push_back({&timed, Direction::kForward, shape});
    for (const PortableShape& shape : backward_shapes) all.push_back({&timed, Direction::kBackward, shape});
  }
  return all;
}

/// Decode with grouped heads and caches of two sizes.
constexpr Timed kDecoding[] = {
    {"one query", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 1, .seq_kv = 8192}},
    {"four queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 4, .seq_kv = 8192}},
    {"eight queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 8, .seq_kv = 8192}},
    {"sixteen queries", kPlain, {.batch = 16, .heads_q = 32, .heads_kv = 8, .seq_q = 16, .seq_kv = 8192}},
    {"one query, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 1, .seq_kv = 32768}},
    {"four queries, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 4, .seq_kv = 32768}},
    {"eight queries, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 8, .seq_kv = 32768}},
    {"sixteen queries, 32768", kPlain, {.batch = 4, .heads_q = 32, .heads_kv = 8, .seq_q = 16, .seq_kv = 32768}},
};

/// The shapes that are offered for its rows, and some that are not.
std::vector<SplitKvShape> decoding_shapes(const Timed& timed) {
  struct Cut {
    int rows, row_tiles, keys, warps;
  };
  static constexpr Cut kCuts[] = {{16, 1, 16, 4}, {32, 2, 16, 4}, {32, 2, 32, 8}, {64, 2, 16, 8}};
  const AttentionProblem problem = problem_of(timed);
  const std::int64_t rows = timed.sizes.heads_q / timed.sizes.heads_kv * timed.sizes.seq_q;
  const DeviceProperties& device = cuda::describe_current_device();
  std::vector<SplitKvShape> shapes = split_kv_shapes(problem, device);
  for (const Cut& cut : kCuts)
    shapes.push_back(split_kv_shape(cut.rows, cut.row_tiles, cut.keys, cut.warps, problem, device));
  std::erase_if(shapes, [&](const SplitKvShape& shape) { return shape.queries != std::max<std::int64_t>(rows, 16); });
  if (cuda::current_compute_capability() != kHopper) return shapes;
  // By warpgroups, and of these some that are not offered either.
  struct GroupCut {
    int keys, teams;
  };
  static constexpr GroupCut kGroupCuts[] = {{32, 2}, {64, 1}, {32, 1}};
  for (const SplitKvShape& shape : hopper_split_kv_shapes(problem, device.multiprocessors)) shapes.push_back(shape);
  for (const GroupCut& cut : kGroupCuts) {
    shapes.push_back(hopper_split_kv_shape(cut.keys, cut.teams, problem, device.multiprocessors));
    // Heads fill the device here.
    if (problem.batch * problem.heads_kv * 2 > device.multiprocessors) shapes.back().splits = 1;
  }
  return shapes;
}

/// With SCOREMOD_DEVICE_TIMES=build the plans are only built, into the store, which several processes may do at once.
TEST_P(AttentionKernelTimes, OfAShape) {
  const TimedShape test = timed_shapes()[static_cast<std::size_t>(GetParam())];
  if (std::holds_alternative<HopperShape>(test.shape) && cuda::current_compute_capability() != kHopper)
    GTEST_SKIP() << "no device of compute capability 9.0";
  if (test.direction == Direction::kForward)
    time_forwards(*test.timed, {test.shape});
  else
    time_backwards(*test.timed, {test.shape});
}

class SplitKvAttentionKernelTimes : public AttentionKernelTimes {};

TEST_P(SplitKvAttentionKernelTimes, OfACase) {
  const Timed& timed = kDecoding[GetParam()];
  const std::vector<SplitKvShape> shapes = decoding_shapes(timed);
  time_forwards(timed, {shapes.begin(), shapes.end()});
}
INSTANTIATE_TEST_SUITE_P(Cases, SplitKvAttentionKernelTimes,
                         ::testing::Range(0, static_cast<int>(std::size(kDecoding))));

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionKernelTimes, ::testing::Range(0, static_cast<int>(timed_shapes().size())));

}  // namespace
}  // namespace scoremod::backend::kernels
