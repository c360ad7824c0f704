#include "backend/kernels/shared/tile_shape.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/problem_topics.hpp"

namespace scoremod::backend::kernels {
namespace {

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }

/// Copies to shared memory that run beside other work, and the products of matrices, begin with it.
constexpr int kOldestCapability = 80;
/// Four rows of row terms or four tiles' states share a CTA.
constexpr std::int64_t kRowsOfBlock = 4;

}  // namespace

int value_parts_of(std::int64_t dim_v) { return static_cast<int>((dim_v + kWidestHead - 1) / kWidestHead); }

std::int64_t value_dims(const TileShape& shape, std::int64_t dim_v) {
  return shape.value_parts == 1 ? dim_v : padded((dim_v + shape.value_parts - 1) / shape.value_parts);
}

void add_forward_launches(CallLayout& layout, const KernelLaunch& launch, const TileShape& shape, std::int64_t dim_v) {
  const std::int64_t dims = value_dims(shape, dim_v);
  for (int part = 0; part < shape.value_parts; ++part) {
    layout.add_launch(launch);
    // The last part begins where it ends with v: it may write dims again, as they are.
    layout.launches().back().first_value = static_cast<int>(std::min(part * dims, dim_v - dims));
  }
}

std::vector<UnsupportedReason> problem_objections(const compiler::CompiledProblem& compiled, Direction direction,
                                                  Float8 float8) {
  // Every member is named: one that is added does not compile until it is run or refused here.
  static_assert(problem::kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions,
                                    BackwardOptions, ScoreProgram>);
  const AttentionProblem& problem = compiled.problem;
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged,
                                lengths, index_offsets] = problem::topic<Sequences>(problem);
  [[maybe_unused]] const auto& [dtype, dtype_kv, dtype_o, dtype_d_o, dtype_gradients] =
      problem::topic<TensorDTypes>(problem);
  [[maybe_unused]] const auto& [q, k, v, o, d_o, dq, dk, dv] = problem::topic<TensorLayouts>(problem);
  [[maybe_unused]] const auto& [scale, sink, dropout, dropout_keys] = problem::topic<SoftmaxOptions>(problem);
  [[maybe_unused]] const auto& [stats, max_logit, amax_o] = problem::topic<OutputOptions>(problem);
  [[maybe_unused]] const auto& [backward, given_deltas, deterministic, amax_gradients] =
      problem::topic<BackwardOptions>(problem);
  [[maybe_unused]] const auto& [program, operands] = problem::topic<ScoreProgram>(problem);
  std::vector<UnsupportedReason> reasons;
  if ((is_float8(dtype) && float8 != Float8::kAll) || (dtype_kv && float8 != Float8::kKeys))
    reasons.push_back(unsupported(
        Rule::kDtype, concat("expected q, k and v in f32, f16 or bf16, found ", to_string(dtype_kv.value_or(dtype)))));
  // Kernels that read FP8 keys multiply scores and weights by scales of rows.
  if (float8 != Float8::kKeys || !problem::has_row_scales(problem)) object_to_block_scales(problem, reasons);
  if (const std::int64_t widest = widest_head(direction); dim_qk > widest || dim_v > widest) {
    reasons.push_back(unsupported(Rule::kHeadDim, concat("expected head dims of at most ", widest, ", found ", dim_qk,
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
  if (rows / kRowsOfBlock > most || longest > most / 2) {
    reasons.push_back(unsupported(Rule::kEngineRefused,
                                  concat("expected fewer than 2^33 rows of queries or keys, found batch ", batch,
                                         ", heads ", heads_q, ", seq_q ", seq_q, " and seq_kv ", seq_kv)));
  }
  return reasons;
}

std::vector<UnsupportedReason> device_objections(const DeviceProperties& device) {
  if (device.compute_capability >= kOldestCapability) return {};
  return {
      unsupported(Rule::kEngineRefused, concat("expected a device of compute capability 8.0 or later, found ",
                                               device.compute_capability / 10, ".", device.compute_capability % 10))};
}

std::vector<UnsupportedReason> tiled_objections(const Work& work, const DeviceProperties* device, Float8 float8) {
  std::vector<UnsupportedReason> reasons = problem_objections(work.problem, work.direction, float8);
  if (reasons.empty() && device != nullptr) return device_objections(*device);
  return reasons;
}

std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device) {
  std::size_t wanted = 0;
  for (const KernelLaunch& launch : launches) wanted = std::max(wanted, launch.shared_bytes);
  if (wanted <= static_cast<std::size_t>(device.shared_memory_per_block)) return {};
  return {unsupported(Rule::kEngineRefused,
                      concat("expected ", wanted, " bytes of shared memory, found ", device.shared_memory_per_block))};
}

}  // namespace scoremod::backend::kernels
