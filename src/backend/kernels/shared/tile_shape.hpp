#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/device_properties.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/shared/tile_time.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

namespace device {
using std::size_t;
#include "backend/kernels/shared/storage.cuh"
}  // namespace device

/// How kernels that walk over tiles of scores cut a problem: the part that all families have. Each family's shape is
/// derived from it.
struct TileShape {
  int warps = 4;          ///< the consumer warps of a CTA
  int row_tiles = 1;      ///< 16-row tiles of a warp whose rows are queries, in the forward and in the kernel of dq
  int queries = 64;       ///< of a tile of scores, and of a CTA in these two kernels
  int keys = 64;          ///< of a tile of scores, and of a CTA in the kernel of dk and dv
  int element_bytes = 2;  ///< of a number in a tile
  int blocks = 2;         ///< CTAs that an SM should have room for, which limits a thread's registers
  /// Launches of a forward that each write some of o's dims, because the accumulators of all do not fit into the
  /// registers. Each makes the scores anew.
  int value_parts = 1;

  ScoreTile score_tile() const { return {queries, keys}; }
  /// Whether tiles and MMAs are of float32.
  bool holds_floats() const { return element_bytes == 4; }
  int consumer_threads() const { return 32 * warps; }
  bool operator==(const TileShape&) const = default;
};

/// As many value_parts as a forward needs for this head dim of v.
int value_parts_of(std::int64_t dim_v);
/// The dims of v and o that a kernel of this shape has.
std::int64_t value_dims(const TileShape& shape, std::int64_t dim_v);
/// Adds a forward's launch, once for each of the shape's value_parts.
void add_forward_launches(CallLayout& layout, const KernelLaunch& launch, const TileShape& shape, std::int64_t dim_v);

/// The widest head whose dims one thread's registers can hold for 16 rows of a warp, and the widest one of forwards
/// that have value_parts.
inline constexpr std::int64_t kWidestHead = 256, kWidestForward = 576;
constexpr std::int64_t widest_head(Direction direction) {
  return direction == Direction::kForward ? kWidestForward : kWidestHead;
}
/// The FP8 tensors that a family takes as they are.
enum class Float8 : std::uint8_t {
  kNone,
  kKeys,  ///< keys and values under queries of 16 bits
  kAll,   ///< queries, keys and values
};

/// Why no tiled kernels can be made for a direction of a problem, whatever the device; empty where they can.
std::vector<UnsupportedReason> problem_objections(const compiler::CompiledProblem& problem, Direction direction,
                                                  Float8 float8 = Float8::kNone);
/// problem_objections(), and device_objections() if there are none and there is a device.
std::vector<UnsupportedReason> tiled_objections(const Work& work, const DeviceProperties* device,
                                                Float8 float8 = Float8::kNone);
/// Why a device cannot run what these kernels are made of, whatever the problem.
std::vector<UnsupportedReason> device_objections(const DeviceProperties& device);
/// The reasons why a launch has too little shared memory on this device.
std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device);

}  // namespace scoremod::backend::kernels
