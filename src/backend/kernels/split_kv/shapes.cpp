#include <algorithm>
#include <array>

#include "backend/kernels/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend::kernels {
namespace {

/// With more, rows fill the tiles of the other kernels.
constexpr std::int64_t kMaxQueries = 64;
constexpr std::array<int, 3> kRows{16, 32, 64};
/// Sums of 32 rows of a wider output would not fit into a warp's registers.
constexpr std::int64_t kWidestOfTwoRowTiles = 128;
constexpr int kFewestKeys = 16;
constexpr int kMaxWarps = 8, kMaxStages = 6, kMinStages = 2;
/// Warps over FP8 keys: these have twice as much arithmetic for each byte, and a warp has few instructions at once.
constexpr int kMaxFloat8Warps = 16;
/// Keys that a team takes at once, before others' begin.
constexpr std::int64_t kChunk = 64;
/// Rows of q and sums of wider heads leave a warp of the streamed kernel too few registers.
constexpr std::int64_t kWidestStreamed = 128;
/// Hopper's tile: rows and keys of a warpgroup's WGMMA, fewer keys if these leave too few stages, and the warps of a
/// group.
constexpr int kGroupRows = 64, kGroupKeys = 64, kFewerGroupKeys = 32, kGroupWarps = 4;
constexpr std::int64_t kWidestOfTwoTeams = 128;
/// The shared memory that the device reserves for each CTA.
constexpr std::int64_t kReservedBytes = 1024;

std::int64_t quotient_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }
std::int64_t shared_bytes(const SplitKvShape& shape, const AttentionProblem& problem) {
  return static_cast<std::int64_t>(split_kv_shared_bytes(shape, problem.dim_qk, problem.dim_v));
}

/// As many as there is room for, but not fewer than are of use.
int stages_of(SplitKvShape shape, const AttentionProblem& problem, std::int64_t room) {
  for (shape.stages = kMaxStages; shape.stages > kMinStages; --shape.stages)
    if (shared_bytes(shape, problem) <= room) break;
  return shape.stages;
}

/// Whether registers suffice for what a thread holds: sums of its rows, scores, and what there is beside them.
bool fits_registers(const SplitKvShape& shape, std::int64_t dim_v) {
  constexpr std::int64_t kOfMultiprocessor = 65536, kMaxOfThread = 255, kBeside = 80;
  const std::int64_t wanted = shape.row_tiles * (padded(dim_v) + shape.keys) / 2 + kBeside;
  return wanted <= std::min(kMaxOfThread, kOfMultiprocessor / (std::int64_t{shape.blocks} * shape.threads()));
}

/// A shape of the family, for keys of the problem's dtype.
SplitKvShape shape_for(const AttentionProblem& problem) {
  SplitKvShape shape;
  shape.key_bytes = static_cast<int>(size_of(problem::dtype_of(problem, problem::TensorRole::kK)));
  shape.row_scales = problem::has_row_scales(problem);
  shape.value_parts = value_parts_of(problem.dim_v);
  return shape;
}

int most_warps(const SplitKvShape& shape) { return shape.key_bytes == 1 ? kMaxFloat8Warps : kMaxWarps; }

/// Tiles with room for so many rows.
SplitKvShape split_kv_cut(int rows, const AttentionProblem& problem) {
  SplitKvShape shape = shape_for(problem);
  shape.queries = rows;
  shape.row_tiles = rows > 16 && value_dims(shape, problem.dim_v) <= kWidestOfTwoRowTiles ? 2 : 1;
  shape.keys = rows == 64 && shape.row_tiles == 2 ? 32 : kFewestKeys;
  return shape;
}

/// Gives a shape of so many teams as many CTAs as run at once, two on a multiprocessor if that has room for them.
/// Returns whether it has room for one.
bool make_persistent(SplitKvShape& shape, const AttentionProblem& problem, const DeviceProperties& device) {
  for (shape.blocks = 2; shape.blocks > 0; --shape.blocks) {
    shape.persistent_ctas = static_cast<int>(device.multiprocessors) * shape.blocks;
    const std::int64_t room = device.shared_memory_per_block / shape.blocks - (shape.blocks - 1) * kReservedBytes;
    shape.stages = stages_of(shape, problem, room);
    if (shared_bytes(shape, problem) <= room &&
        (shape.blocks == 1 || fits_registers(shape, value_dims(shape, problem.dim_v))))
      return true;
  }
  return false;
}

/// As many as fill the multiprocessors once, or some times over where that leaves fewer idle in the end; at least 2.
int splits_of(const SplitKvShape& shape, const AttentionProblem& problem, std::int64_t multiprocessors) {
  const std::int64_t heads = problem.batch * problem.heads_kv * split_kv_row_tiles(shape, problem);
  const std::int64_t chunks = quotient_up(problem.seq_kv, kChunk), at_once = multiprocessors * shape.blocks;
  const std::int64_t most = std::max<std::int64_t>(2, std::min(quotient_up(chunks, shape.teams), at_once));
  // The time of a CTA beside its keys, in chunks of a team.
  constexpr std::int64_t kBlock = 2;
  std::int64_t best = 2, least = 0;
  for (std::int64_t splits = 2; splits <= most;) {
    const std::int64_t rounds = quotient_up(heads * splits, at_once);
    if (splits > 2 && rounds * (1 + kBlock) >= least) break;  // more splits ask for no fewer rounds
    // Up to the last of as many rounds, more splits shorten a CTA's keys: the fewest of those that shorten them most.
    const std::int64_t last = std::clamp(rounds * at_once / heads, splits, most);
    const std::int64_t own_chunks = quotient_up(chunks, last * shape.teams);
    const std::int64_t fewest = std::max(splits, quotient_up(chunks, own_chunks * shape.teams));
    const std::int64_t time = rounds * (own_chunks + kBlock);
    if (splits == 2 || time < least) {
      best = fewest;
      least = time;
    }
    splits = last + 1;
  }
  return static_cast<int>(best);
}

}  // namespace

std::vector<SplitKvShape> split_kv_shapes(const AttentionProblem& problem, const DeviceProperties& device) {
  std::vector<SplitKvShape> shapes;
  for (const int rows : kRows) {
    const SplitKvShape cut = split_kv_cut(rows, problem);
    shapes.push_back(split_kv_shape(rows, cut.row_tiles, cut.keys, most_warps(cut), problem, device));
    shapes.push_back(shapes.back());
    shapes.back().splits = 1;
  }
  return shapes;
}

SplitKvShape split_kv_shape(int rows, int row_tiles, int keys, int warps, const AttentionProblem& problem,
                            const DeviceProperties& device) {
  SplitKvShape shape = shape_for(problem);
  shape.queries = rows;
  shape.row_tiles = row_tiles;
  shape.keys = keys;
  const int team_warps = rows / (16 * row_tiles);
  const std::int64_t room = device.shared_memory_per_block;
  // Few tiles on their way leave memory idle, and so wide heads or small devices have fewer warps.
  for (shape.warps = std::max(warps, team_warps);; shape.warps /= 2) {
    shape.teams = shape.warps / team_warps;
    shape.blocks = 2;
    shape.stages = stages_of(shape, problem, room / 2 - kReservedBytes);
    if (shape.stages > kMinStages && fits_registers(shape, value_dims(shape, problem.dim_v))) break;
    shape.blocks = 1;
    shape.stages = stages_of(shape, problem, room);
    if (shape.stages > kMinStages || shape.teams == 1) break;
  }
  shape.splits = splits_of(shape, problem, device.multiprocessors);
  return shape;
}

SplitKvShape split_kv_at_sizes(SplitKvShape shape, const AttentionProblem& problem, std::int64_t multiprocessors) {
  if (shape.splits > 1) shape.splits = splits_of(shape, problem, multiprocessors);
  return shape;
}

std::vector<SplitKvShape> persistent_split_kv_shapes(const AttentionProblem& problem, const DeviceProperties& device) {
  std::vector<SplitKvShape> shapes;
  if (!has_lengths_in_memory(problem)) return shapes;
  const auto add = [&](const SplitKvShape& cut) {
    const int team_warps = cut.queries / (16 * cut.row_tiles);
    for (int warps = most_warps(cut); warps >= team_warps; warps -= team_warps) {
      SplitKvShape shape = cut;
      shape.warps = warps;
      shape.teams = warps / team_warps;
      if (make_persistent(shape, problem, device)) return shapes.push_back(shape);
    }
  };
  for (const int rows : kRows) {
    SplitKvShape cut = split_kv_cut(rows, problem);
    add(cut);
    if (cut.keys == kFewestKeys) continue;
    // With some masks ptxas spills in the larger tiles, and these come next.
    cut.keys = kFewestKeys;
    add(cut);
  }
  return shapes;
}

SplitKvShape streamed_split_kv_shape(int warps, const AttentionProblem& problem, const DeviceProperties& device) {
  SplitKvShape shape;
  shape.streamed = true;
  shape.queries = 16;
  shape.keys = kFewestKeys;
  shape.warps = shape.teams = warps;
  shape.blocks = 1;
  shape.persistent_ctas = static_cast<int>(device.multiprocessors);
  shape.stages = stages_of(shape, problem, device.shared_memory_per_block);
  return shape;
}

std::vector<UnsupportedReason> streamed_split_kv_objections(const AttentionProblem& problem) {
  std::vector<UnsupportedReason> reasons;
  if (problem.dtype_kv) {
    reasons.push_back(
        unsupported(Rule::kDtype, concat("streamed split-KV kernels: expected k and v of the dtype of q, ",
                                         to_string(problem.dtype), ", found ", to_string(*problem.dtype_kv))));
  }
  if (const std::int64_t widest = std::max(problem.dim_qk, problem.dim_v); widest > kWidestStreamed) {
    reasons.push_back(unsupported(Rule::kHeadDim, concat("streamed split-KV kernels: expected head dims of at most ",
                                                         kWidestStreamed, ", found ", widest)));
  }
  return reasons;
}

std::vector<SplitKvShape> hopper_split_kv_shapes(const AttentionProblem& problem, std::int64_t multiprocessors) {
  // While one team turns scores into weights, the other's products run. Two teams of wide heads lack registers.
  const int teams = problem.dim_v <= kWidestOfTwoTeams ? 2 : 1;
  SplitKvShape shape = hopper_split_kv_shape(kGroupKeys, teams, problem, multiprocessors);
  if (shape.stages <= kMinStages) shape = hopper_split_kv_shape(kFewerGroupKeys, teams, problem, multiprocessors);
  SplitKvShape whole = shape;
  whole.splits = 1;
  return {shape, whole};
}

SplitKvShape persistent_hopper_split_kv_shape(const AttentionProblem& problem, std::int64_t multiprocessors) {
  SplitKvShape shape = hopper_split_kv_shapes(problem, multiprocessors).back();
  shape.persistent_ctas = static_cast<int>(multiprocessors);
  // Each team has a tile of q of its own.
  shape.stages = stages_of(shape, problem, std::int64_t{kHopperSharedBytes});
  return shape;
}

SplitKvShape hopper_split_kv_shape(int keys, int teams, const AttentionProblem& problem, std::int64_t multiprocessors) {
  SplitKvShape shape;
  shape.hopper = true;
  shape.queries = kGroupRows;
  shape.keys = keys;
  shape.teams = teams;
  shape.warps = kGroupWarps * teams;
  shape.blocks = 1;
  shape.stages = stages_of(shape, problem, std::int64_t{kHopperSharedBytes});
  shape.splits = splits_of(shape, problem, multiprocessors);
  return shape;
}

std::vector<UnsupportedReason> hopper_split_kv_objections(const AttentionProblem& problem) {
  std::vector<UnsupportedReason> reasons;
  if (problem.dtype_kv) {
    reasons.push_back(
        unsupported(Rule::kDtype, concat("hopper split-KV kernels: expected k and v of the dtype of q, ",
                                         to_string(problem.dtype), ", found ", to_string(*problem.dtype_kv))));
  }
  const std::int64_t rows = problem.heads_q / problem.heads_kv * problem.seq_q;
  if (rows > kGroupRows) {
    reasons.push_back(
        unsupported(Rule::kEngineRefused, concat("hopper split-KV kernels: expected at most ", kGroupRows,
                                                 " queries of the heads that share one of keys, found ", rows)));
  }
  for (const problem::TensorRole role : {problem::TensorRole::kK, problem::TensorRole::kV}) {
    const device::TensorArgument tensor = tensor_argument(problem, role, nullptr);
    const problem::TensorShape shape = problem::memory_shape_of(problem, role);
    if (!(shape.batch > 1 && tensor.batch == 0) && !(shape.heads > 1 && tensor.head == 0)) continue;
    // No map has such rows, and the few threads that copy take long without one.
    reasons.push_back(
        unsupported(Rule::kCopyAlignment, concat("hopper split-KV kernels: expected rows of ", to_string(role),
                                                 " of their own for each batch and head, found some that share them")));
  }
  return reasons;
}

SplitKvShape wide_split_kv_shape(const AttentionProblem& problem, std::int64_t multiprocessors) {
  SplitKvShape shape;
  shape.hopper = shape.wide = true;
  shape.queries = kGroupRows;
  shape.keys = kGroupKeys;
  shape.warps = 2 * kGroupWarps;
  shape.blocks = 1;
  shape.value_parts = value_parts_of(problem.dim_v);
  shape.persistent_ctas = static_cast<int>(multiprocessors);
  shape.stages = stages_of(shape, problem, std::int64_t{kHopperSharedBytes});
  return shape;
}

std::vector<UnsupportedReason> wide_split_kv_objections(const AttentionProblem& problem) {
  constexpr std::int64_t kNarrowest = 256, kWidest = 512, kStep = 128;
  std::vector<UnsupportedReason> reasons;
  if (problem.dtype_kv) {
    reasons.push_back(
        unsupported(Rule::kDtype, concat("wide hopper split-KV kernels: expected k and v of the dtype of q, ",
                                         to_string(problem.dtype), ", found ", to_string(*problem.dtype_kv))));
  }
  if (problem.dim_v <= kNarrowest || problem.dim_v > kWidest || problem.dim_v % kStep != 0) {
    reasons.push_back(unsupported(Rule::kHeadDim, concat("wide hopper split-KV kernels: expected a head dim of v of ",
                                                         "384 or 512, found ", problem.dim_v)));
  }
  return reasons;
}

std::vector<UnsupportedReason> split_kv_objections(const AttentionProblem& problem) {
  if (problem.dtype == DType::kF32)
    return {unsupported(Rule::kDtype, "split-KV kernels: expected q, k and v in f16 or bf16, found f32")};
  // A weight times the scale of its value is rounded to the queries' dtype, and f16 has no room for small scales.
  if (problem.dtype == DType::kF16 && problem::has_row_scales(problem))
    return {unsupported(Rule::kBlockScales,
                        "split-KV kernels: expected bf16 queries where rows of k or v have scales, found f16")};
  if (problem.seq_q <= kMaxQueries) return {};
  return {unsupported(Rule::kEngineRefused,
                      concat("split-KV kernels: expected at most ", kMaxQueries, " queries, found ", problem.seq_q))};
}

bool has_lengths_in_memory(const AttentionProblem& problem) { return problem.paged || problem.tokens_kv; }

std::int64_t split_kv_row_tiles(const SplitKvShape& shape, const AttentionProblem& problem) {
  const std::int64_t rows = problem.heads_q / problem.heads_kv * problem.seq_q;
  return quotient_up(rows, shape.queries);
}

std::size_t split_kv_shared_bytes(const SplitKvShape& shape, std::int64_t dim_qk, std::int64_t dim_v) {
  const int qk = static_cast<int>(dim_qk), v = static_cast<int>(value_dims(shape, dim_v));
  if (shape.wide) {
    const device::WideDecodeStorage storage{qk,           static_cast<int>(dim_v), shape.queries, shape.keys,
                                            shape.stages, shape.consumer_threads()};
    return storage.bytes;
  }
  if (shape.hopper) {
    const device::HopperDecodeStorage storage{
        qk, v, shape.queries, shape.keys, shape.stages, shape.teams, shape.persistent_ctas > 0};
    return storage.bytes;
  }
  if (shape.streamed) {
    const device::StreamedDecodeStorage storage{qk, v, shape.queries, shape.keys, shape.stages, shape.teams};
    return storage.bytes;
  }
  if (shape.persistent_ctas > 0) {
    const device::PersistentDecodeStorage storage{qk,
                                                  v,
                                                  shape.queries,
                                                  shape.keys,
                                                  shape.stages,
                                                  shape.teams,
                                                  shape.threads(),
                                                  shape.key_bytes,
                                                  shape.row_scales};
    return storage.bytes;
  }
  const device::DecodeStorage storage{
      qk, v, shape.queries, shape.keys, shape.stages, shape.teams, shape.threads(), shape.key_bytes, shape.row_scales};
  return storage.bytes;
}

std::size_t split_kv_part_bytes(const SplitKvShape& shape, const AttentionProblem& problem) {
  const auto dims = static_cast<int>(shape.wide ? problem.dim_v : value_dims(shape, problem.dim_v));
  if (shape.persistent_ctas > 0) {
    // Two for each CTA and for each of its teams, of the rows that there are.
    const std::int64_t rows = problem.heads_q / problem.heads_kv * problem.seq_q;
    const device::PartialStorage partial{static_cast<int>(std::min<std::int64_t>(rows, shape.queries)), dims};
    return static_cast<std::size_t>(std::int64_t{2} * shape.persistent_ctas * (shape.teams + 1) * partial.bytes);
  }
  const device::PartialStorage partial{shape.queries, dims};
  const std::int64_t tiles = problem.batch * problem.heads_kv * split_kv_row_tiles(shape, problem);
  return static_cast<std::size_t>(tiles * shape.splits * partial.bytes);
}

}  // namespace scoremod::backend::kernels
