#include "backend/kernels/shared/tiled_layout.hpp"

#include <algorithm>

#include "backend/kernels/mask/mask_knowledge.hpp"
#include "backend/kernels/shared/position_tables.hpp"

namespace scoremod::backend::kernels {
namespace {

/// About the SM count of the devices that these kernels are for. So many CTAs, one on each SM, read from as many heads
/// in either order, so that L2 has to keep nothing more.
constexpr std::int64_t kBlocksAtOnce = 128;
/// With fewer heads than these the last blocks wait for a few long rows; up to so many tiles a head more cost nothing.
constexpr int kLeastTogether = 8;
constexpr int kOrderThreads = 512;
/// Rows of tiles that one block puts in order: it compares all with all.
constexpr std::int64_t kMostOrdered = 4096;

int heads_together(const CallLayout& layout, const masks::MaskClass& mask, const TileShape& shape) {
  if (shape.heads_together > 0) return shape.heads_together;
  // All rows are as long as each other.
  if (mask.kind == masks::MaskKind::kFull) return 1;
  const std::int64_t tiles = std::max(layout.query_tiles, layout.key_tiles);
  const int least = tiles > kBlocksAtOnce ? 1 : kLeastTogether;
  return static_cast<int>(std::max<std::int64_t>(least, kBlocksAtOnce / tiles));
}

void add_tables(CallLayout& layout, const Work& work, const TileShape& shape) {
  const PositionTables tables = position_tables(program_of(work.problem, work.direction));
  if (tables.nodes.empty()) return;
  const std::int64_t entries = tables.entries(work.problem.problem, std::int64_t{layout.query_tiles} * shape.queries,
                                              std::int64_t{layout.key_tiles} * shape.keys);
  layout.add_workspace(&device::AttentionArguments::differences,
                       tables.nodes.size() * static_cast<std::size_t>(entries) * sizeof(float));
  layout.add_launch({"attention_differences", tiles_of(entries, kSmallThreads), kSmallThreads, 0});
}

/// The launches that make the block mask and the order of rows of tiles: once if these are the same in every call.
void add_states(CallLayout& layout, const Work& work, const TileShape& shape) {
  const MaskKnowledge mask = mask_knowledge(work.problem, work.direction);
  if (!mask.has_states()) return;
  const AttentionProblem& p = work.problem.problem;
  const auto add = [&](auto* device::AttentionArguments::*pointer, std::int64_t bytes, KernelLaunch launch) {
    const auto size = static_cast<std::size_t>(bytes);
    if (mask.same_in_every_call) {
      layout.add_memory_once(pointer, size);
      layout.add_launch_once(std::move(launch));
    } else {
      layout.add_workspace(pointer, size);
      layout.add_launch(std::move(launch));
    }
  };
  const std::int64_t planes = (mask.varies_with_batch ? p.batch : 1) * (mask.varies_with_head ? p.heads_q : 1);
  const std::int64_t tiles = std::int64_t{layout.query_tiles} * layout.key_tiles * planes;
  add(&device::AttentionArguments::states, tiles,
      {"attention_block_mask", tiles_of(tiles, kSmallWarps), kSmallThreads, 0});
  const std::int64_t rows = shape.fused ? layout.key_tiles : layout.query_tiles;
  if (!shape.ordered || rows > kMostOrdered) return;
  constexpr auto kInt = static_cast<std::int64_t>(sizeof(int));
  add(&device::AttentionArguments::order, planes * rows * kInt,
      {"attention_tile_order", planes, kOrderThreads, static_cast<std::size_t>(rows * kInt)});
}

}  // namespace

std::int64_t tiles_of(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }

CallLayout tiled_layout(const Work& work, const TileShape& shape, bool has_tables) {
  const AttentionProblem& p = work.problem.problem;
  const bool forward = work.direction == Direction::kForward;
  CallLayout layout;
  layout.query_tiles = static_cast<int>(tiles_of(p.seq_q, shape.queries));
  layout.key_tiles = static_cast<int>(tiles_of(p.seq_kv, shape.keys));
  layout.heads_together =
      heads_together(layout, forward ? work.problem.forward.mask : work.problem.backward->mask, shape);
  layout.loaded_bias = shape.loaded_bias;
  if (!forward) {
    const std::int64_t rows = p.batch * p.heads_q * ((p.seq_q + 1) / 2 * 2);
    layout.add_workspace(&device::AttentionArguments::rows, static_cast<std::size_t>(2 * rows) * sizeof(float));
  }
  if (has_tables) add_tables(layout, work, shape);
  add_states(layout, work, shape);
  return layout;
}

}  // namespace scoremod::backend::kernels
