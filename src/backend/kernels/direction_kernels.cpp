#include "backend/kernels/direction_kernels.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>

#include "backend/cuda/program_source.hpp"
#include "backend/kernels/difference_tables.hpp"
#include "backend/kernels/few_queries_shape.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

constexpr std::int64_t kMaxDim = 256;
/// The threads of backward_rows and of tile_states: four warps, each of which has a row or a tile.
constexpr int kSmallThreads = 128;
constexpr std::int64_t kSmallWarps = 4;
constexpr int kWarpThreads = 32;
/// About the SM count of the devices that these kernels are for. So many CTAs, one on each SM, read from as many heads
/// in either order, so that L2 has to keep nothing more.
constexpr std::int64_t kBlocksAtOnce = 128;
/// With fewer heads than these the last blocks wait for a few long rows; up to so many tiles a head more cost nothing.
constexpr int kLeastTogether = 8;
constexpr int kOrderThreads = 512;
/// Rows of tiles that one block puts in order: it compares all with all.
constexpr std::int64_t kMostOrdered = 4096;

std::int64_t tiles_of(std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; }

/// A call id unique across processes (48 bits). It tags counters in a workspace that is never cleared.
std::uint64_t next_call_number() {
  static std::atomic<std::uint64_t> last{std::uint64_t{std::random_device{}()} << 16};
  return ++last & 0xffff'ffff'ffff;
}

/// To the next place in a workspace where numbers of 16 bytes may lie.
std::size_t aligned(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

std::vector<UnsupportedReason> DirectionKernels::unsupported_reasons(const compiler::CompiledProblem& compiled) {
  // Every member is named: one that is added does not compile until it is run or refused here.
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged,
                                dtype, dtype_o, dtype_d_o, dtype_gradients, q, k, v, o, d_o, dq, dk, dv, scale, lengths,
                                sink, dropout, dropout_keys, given_deltas, program, operands, backward, stats,
                                max_logit, amax_o, index_offsets, deterministic] = compiled.problem;
  std::vector<UnsupportedReason> reasons;
  if (is_float8(dtype))
    reasons.push_back(
        unsupported(Rule::kDtype, concat("expected q, k and v in f32, f16 or bf16, found ", to_string(dtype))));
  if (dim_qk > kMaxDim || dim_v > kMaxDim) {
    reasons.push_back(unsupported(Rule::kHeadDim, concat("expected head dims of at most ", kMaxDim, ", found ", dim_qk,
                                                         " of q and k and ", dim_v, " of v")));
  }
  const std::size_t nodes =
      compiled.backward ? compiled.backward->program.nodes().size() : compiled.forward.program.nodes().size();
  if (nodes > cuda::kMaxKernelNodes || operands.size() > kMaxOperands) {
    reasons.push_back(unsupported(Rule::kEngineRefused,
                                  concat("expected at most ", cuda::kMaxKernelNodes, " nodes and ", kMaxOperands,
                                         " operands of a kernel, found ", nodes, " and ", operands.size())));
  }
  // CTAs are numbered in 31 bits, and so are positions; the smallest tiles have 32 rows, and four rows share a CTA.
  const std::int64_t longest = std::max({seq_q, seq_kv, tokens_q.value_or(0), tokens_kv.value_or(0)}),
                     most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t rows = batch * heads_q * (std::max(seq_q, seq_kv) + 64);
  if (rows / kSmallWarps > most || longest > most / 2) {
    reasons.push_back(unsupported(Rule::kEngineRefused,
                                  concat("expected fewer than 2^33 rows of queries or keys, found batch ", batch,
                                         ", heads ", heads_q, ", seq_q ", seq_q, " and seq_kv ", seq_kv)));
  }
  return reasons;
}

DirectionKernels::DirectionKernels(const compiler::CompiledProblem& problem, Direction direction,
                                   const TileShape& shape)
    : problem_(problem.problem),
      mask_class_(direction == Direction::kForward ? problem.forward.mask : problem.backward->mask),
      shape_(shape),
      mask_(mask_knowledge(problem, direction)) {
  const AttentionProblem& p = problem_;
  const Program& program = program_of(problem, direction);
  for (const NodeId node : cuda::argument_constants(program))
    constants_.push_back(ir::constant_i32(program.nodes()[node]));
  query_tiles_ = is_few_queries(shape_.family) ? few_query_row_tiles(shape_, p) : tiles_of(p.seq_q, shape_.queries);
  key_tiles_ = tiles_of(p.seq_kv, shape_.keys);
  if (direction == Direction::kBackward)
    rows_bytes_ = static_cast<std::size_t>(2 * p.batch * p.heads_q * ((p.seq_q + 1) / 2 * 2)) * sizeof(float);
  if (!is_few_queries(shape_.family)) {
    const DifferenceTables tables = difference_tables(program);
    const std::int64_t entries = tables.entries(p, query_tiles_ * shape_.queries, key_tiles_ * shape_.keys);
    differences_bytes_ = tables.nodes.size() * static_cast<std::size_t>(entries) * sizeof(float);
    if (!tables.nodes.empty())
      launches_.push_back({"attention_differences", tiles_of(entries, kSmallThreads), kSmallThreads, 0});
  }
  add_launches(direction);
}

std::size_t DirectionKernels::differences_at() const {
  const std::size_t before = (states_launches_.empty() ? states_bytes_ : 0) + rows_bytes_ + parts_bytes_;
  return differences_bytes_ == 0 ? before : aligned(before);
}

std::size_t DirectionKernels::taken_at() const {
  const std::size_t before = differences_at() + differences_bytes_;
  return shape_.persistent_blocks == 0 ? before : aligned(before);
}

std::size_t DirectionKernels::query_sums_at() const {
  const std::size_t before = differences_at() + differences_bytes_;
  return query_sums_bytes_ == 0 ? before : aligned(before);
}

void DirectionKernels::add_launches(Direction direction) {
  if (is_few_queries(shape_.family)) return add_few_query_launches();
  const AttentionProblem& p = problem_;
  const std::int64_t heads = p.batch * p.heads_q;
  if (mask_.has_states()) add_state_launches();
  if (shape_.family == Family::kHopper) return add_hopper_launches(direction);
  if (direction == Direction::kForward) {
    launches_.push_back(
        {"attention_forward", query_tiles_ * heads, shape_.threads(), forward_shared_bytes(shape_, p.dim_qk, p.dim_v)});
    return;
  }
  launches_.push_back({"attention_backward_rows", tiles_of(heads * p.seq_q, kSmallWarps), kSmallThreads, 0});
  launches_.push_back({"attention_backward_queries", query_tiles_ * heads, shape_.threads(),
                       backward_queries_shared_bytes(shape_, p.dim_qk, p.dim_v)});
  const KernelLaunch keys{"attention_backward_keys", key_tiles_ * p.batch * p.heads_kv, shape_.threads(),
                          backward_keys_shared_bytes(shape_, p.dim_qk, p.dim_v)};
  launches_.push_back(keys);
  if (!shape_.split_keys) return;
  launches_.push_back(keys);
  launches_.back().kernel = "attention_backward_values";
}

void DirectionKernels::add_state_launches() {
  std::vector<KernelLaunch>& launches = mask_.same_in_every_call ? states_launches_ : launches_;
  const std::int64_t planes =
      (mask_.varies_with_batch ? problem_.batch : 1) * (mask_.varies_with_head ? problem_.heads_q : 1);
  const std::int64_t tiles = query_tiles_ * key_tiles_ * planes;
  states_bytes_ = static_cast<std::size_t>(tiles);
  launches.push_back({"attention_tile_states", tiles_of(tiles, kSmallWarps), kSmallThreads, 0});
  const std::int64_t rows = shape_.fused ? key_tiles_ : query_tiles_;
  if (!shape_.ordered || rows > kMostOrdered) return;
  order_at_ = aligned(states_bytes_);
  states_bytes_ = order_at_ + static_cast<std::size_t>(planes * rows) * sizeof(int);
  launches.push_back({"attention_tile_order", planes, kOrderThreads, static_cast<std::size_t>(rows) * sizeof(int)});
}

void DirectionKernels::add_few_query_launches() {
  const AttentionProblem& p = problem_;
  const std::int64_t tiles = query_tiles_ * p.batch * p.heads_kv;
  if (shape_.splits > 1) {
    shares_at_ = aligned(few_query_part_bytes(shape_, p));
    parts_bytes_ = shares_at_ + static_cast<std::size_t>(tiles) * sizeof(*device::AttentionArguments::shares);
  }
  const bool hopper = is_hopper(shape_.family);
  launches_.push_back({hopper ? "hopper_few_queries" : "attention_few_queries", tiles * shape_.splits, shape_.threads(),
                       few_query_shared_bytes(shape_, p.dim_qk, p.dim_v), hopper});
}

void DirectionKernels::add_hopper_launches(Direction direction) {
  const AttentionProblem& p = problem_;
  const std::int64_t heads = p.batch * p.heads_q;
  if (direction == Direction::kForward) {
    KernelLaunch forward{"hopper_forward", query_tiles_ * heads, shape_.threads(),
                         hopper_forward_shared_bytes(shape_, p.dim_qk, p.dim_v), true};
    if (shape_.persistent_blocks > 0) {
      // The kernel that finds states counts from 0 anew too.
      if (!mask_.has_states() || mask_.same_in_every_call)
        launches_.push_back({"hopper_begin_items", 1, kWarpThreads, 0});
      forward.kernel = "hopper_persistent_forward";
      forward.blocks = blocks_ = std::min<std::int64_t>(forward.blocks, shape_.persistent_blocks);
    }
    launches_.push_back(forward);
    return;
  }
  if (shape_.fused) return add_fused_launches();
  launches_.push_back({"attention_backward_rows", tiles_of(heads * p.seq_q, kSmallWarps), kSmallThreads, 0});
  launches_.push_back({"hopper_backward_queries", query_tiles_ * heads, shape_.threads(),
                       hopper_backward_queries_shared_bytes(shape_, p.dim_qk, p.dim_v), true});
  launches_.push_back({"hopper_backward_keys", key_tiles_ * p.batch * p.heads_kv, shape_.threads(),
                       hopper_backward_keys_shared_bytes(shape_, p.dim_qk, p.dim_v), true});
  if (!shape_.split_keys) return;
  launches_.push_back(launches_.back());
  launches_.back().kernel = "hopper_backward_values";
}

void DirectionKernels::add_fused_launches() {
  const AttentionProblem& p = problem_;
  const std::int64_t tiles = query_tiles_ * p.batch * p.heads_q;
  query_sums_bytes_ = hopper_query_sums_bytes(shape_, p);
  // Rows of all tiles, whose sums it begins.
  launches_.push_back({"attention_backward_rows", tiles_of(tiles * shape_.queries, kSmallWarps), kSmallThreads, 0});
  launches_.push_back({"hopper_backward_fused", key_tiles_ * p.batch * p.heads_kv, shape_.threads(),
                       hopper_backward_keys_shared_bytes(shape_, p.dim_qk, p.dim_v), true});
  launches_.push_back({"hopper_write_queries", tiles, shape_.threads() - shape_.producers(),
                       hopper_write_queries_shared_bytes(shape_, p.dim_qk)});
}

int DirectionKernels::heads_together() const {
  if (shape_.heads_together > 0) return shape_.heads_together;
  // All rows are as long as each other.
  if (mask_class_.kind == masks::MaskKind::kFull) return 1;
  const std::int64_t tiles = std::max(query_tiles_, key_tiles_);
  const int least = tiles > kBlocksAtOnce ? 1 : kLeastTogether;
  return static_cast<int>(std::max<std::int64_t>(least, kBlocksAtOnce / tiles));
}

ArgumentBytes DirectionKernels::common_arguments(const CallParameters& parameters,
                                                 std::span<const void* const> operands, std::byte* workspace) const {
  ArgumentBytes bytes = arguments_of(problem_, mask_class_, constants_, parameters, operands);
  device::AttentionArguments& call = bytes.call();
  call.query_tiles = static_cast<int>(query_tiles_);
  call.key_tiles = static_cast<int>(key_tiles_);
  call.heads_together = heads_together();
  call.splits = shape_.splits;
  call.blocks = static_cast<int>(blocks_);
  // Without a workspace states are found once for all.
  if (blocks_ > 0 && workspace != nullptr) call.taken = reinterpret_cast<int*>(workspace + taken_at());
  call.rows = call.parts = reinterpret_cast<float*>(workspace);
  if (shape_.splits > 1) {
    call.shares = reinterpret_cast<unsigned long long*>(workspace + shares_at_);
    call.number = next_call_number();
  }
  call.differences = reinterpret_cast<float*>(workspace + differences_at());
  call.query_sums = reinterpret_cast<float*>(workspace + query_sums_at());
  call.states = states_launches_.empty() ? reinterpret_cast<unsigned char*>(workspace + rows_bytes_) : states_;
  if (const auto operand = shape_.copied_operand; operand && !operands.empty())
    call.copied = copied_argument(problem_, *operand, operands[*operand]);
  if (order_at_ > 0) call.order = reinterpret_cast<int*>(call.states + order_at_);
  return bytes;
}

ArgumentBytes DirectionKernels::arguments(const ForwardTensors& tensors, const CallParameters& parameters,
                                          std::byte* workspace) const {
  ArgumentBytes bytes = common_arguments(parameters, tensors.operands, workspace);
  device::AttentionArguments& call = bytes.call();
  const AttentionProblem& p = problem_;
  call.q = tensor_argument(p, TensorRole::kQ, tensors.q, tensors.operands);
  call.k = tensor_argument(p, TensorRole::kK, tensors.k, tensors.operands);
  call.v = tensor_argument(p, TensorRole::kV, tensors.v, tensors.operands);
  call.o = tensor_argument(p, TensorRole::kO, tensors.o, tensors.operands);
  call.lse = tensors.lse;
  call.max_logit = tensors.max_logit;
  return bytes;
}

ArgumentBytes DirectionKernels::arguments(const BackwardTensors& tensors, const CallParameters& parameters,
                                          std::byte* workspace) const {
  ArgumentBytes bytes = common_arguments(parameters, tensors.operands, workspace);
  device::AttentionArguments& call = bytes.call();
  const AttentionProblem& p = problem_;
  call.q = tensor_argument(p, TensorRole::kQ, tensors.q, tensors.operands);
  call.k = tensor_argument(p, TensorRole::kK, tensors.k, tensors.operands);
  call.v = tensor_argument(p, TensorRole::kV, tensors.v, tensors.operands);
  call.o = tensor_argument(p, TensorRole::kO, tensors.o, tensors.operands);
  call.d_o = tensor_argument(p, TensorRole::kDO, tensors.d_o, tensors.operands);
  call.dq = tensor_argument(p, TensorRole::kDQ, tensors.dq, tensors.operands);
  call.dk = tensor_argument(p, TensorRole::kDK, tensors.dk, tensors.operands);
  call.dv = tensor_argument(p, TensorRole::kDV, tensors.dv, tensors.operands);
  call.lse = const_cast<float*>(tensors.lse);
  return bytes;
}

}  // namespace scoremod::backend::kernels
