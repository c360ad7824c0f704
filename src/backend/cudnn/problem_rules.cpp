#include "backend/cudnn/problem_rules.hpp"

#include <bit>

#include "backend/unsupported.hpp"
#include "base/fail.hpp"
#include "problem/problem_topics.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// With 9.19 on an H200, dq, dk and dv were all NaN for some problems with very low LSEs or without any key. They were
/// 4 of some 4000 random problems, all of one query row, and one of 1944, of two. A trial sees that for some inputs
/// only. With 17 rows and more none was wrong.
constexpr std::int64_t kMinBackwardRows = 16;

using problem::TensorRole;
using Reasons = std::vector<UnsupportedReason>;

/// Head dims that cuDNN 9.19 builds plans for on some architecture. Which of them on which is cudnn-frontend's to say:
/// frontend_objection().
constexpr std::int64_t kHeadDimMultiple = 8;
constexpr std::int64_t kMaxHeadDim = 256;
/// The family of sm_100 and sm_103.
constexpr int kDataCentreBlackwell = 10;
/// cuDNN's copies move 16 bytes at a time.
constexpr std::int64_t kCopyBytes = 16;

void object_to_head_dim(const char* name, std::int64_t dim, Reasons& reasons) {
  if (dim % kHeadDimMultiple == 0 && dim <= kMaxHeadDim) return;
  reasons.push_back(
      unsupported(Rule::kHeadDim, concat(name, " is ", dim, ": cuDNN's fused attention takes multiples of ",
                                         kHeadDimMultiple, " up to ", kMaxHeadDim)));
}

void object_to_strides(const char* name, TensorRole role, const AttentionProblem& problem, Reasons& reasons) {
  const problem::TensorShape shape = problem::memory_shape_of(problem, role);
  const Strides strides = problem::strides_of(problem, role);
  if (strides.dim != 1 && shape.dim > 1) {
    reasons.push_back(
        unsupported(Rule::kHeadDimStride,
                    concat(name, " has stride ", strides.dim, " along the head dim: cuDNN's fused attention takes 1")));
  }
  const std::int64_t elements = kCopyBytes / static_cast<std::int64_t>(size_of(problem.dtype));
  const auto object = [&](const char* axis, std::int64_t extent, std::int64_t stride) {
    if (extent == 1 || stride % elements == 0) return;
    reasons.push_back(unsupported(Rule::kCopyAlignment, concat(name, " has stride ", stride, " along ", axis,
                                                               ": cuDNN's fused attention takes multiples of ",
                                                               elements, " elements (", kCopyBytes, " bytes)")));
  };
  object("batch", shape.batch, strides.batch);
  object("heads", shape.heads, strides.head);
  object("sequence", shape.sequence, strides.sequence);
}

/// An o of another dtype is built, and was wrong in each cell of the options table that ran on an H200.
void object_to_output_dtype(const AttentionProblem& problem, Reasons& reasons) {
  if (!problem.dtype_o || *problem.dtype_o == problem.dtype) return;
  reasons.push_back(unsupported(Rule::kOutputDtype, concat("expected o of the dtype of q, ", to_string(problem.dtype),
                                                           ", found ", to_string(*problem.dtype_o))));
}

/// cuDNN's words of 9.19: "block size needs to be non-zero and a power of 2".
void object_to_pages(const AttentionProblem& problem, Reasons& reasons) {
  if (!problem.paged || std::has_single_bit(static_cast<std::uint64_t>(problem.paged->block_size))) return;
  reasons.push_back(unsupported(Rule::kPaged, concat("pages have ", problem.paged->block_size,
                                                     " tokens: cuDNN's fused attention takes powers of two")));
}

}  // namespace

std::vector<UnsupportedReason> problem_objections(const AttentionProblem& problem, Direction direction,
                                                  std::optional<int> compute_capability) {
  // Every member is named: one that is added does not compile until it is lowered, or refused here. The program and
  // its operands are judged by the patterns that they need, and the other members that are not looked at here are run.
  static_assert(problem::kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions,
                                    BackwardOptions, ScoreProgram>);
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
  Reasons reasons;
  object_to_output_dtype(problem, reasons);
  object_to_pages(problem, reasons);
  if (dropout > 0) {
    reasons.push_back(unsupported(Rule::kDropout, concat("weights are dropped (dropout is ", dropout,
                                                         "): cuDNN cannot reproduce scoremod's dropout mask")));
  }
  if (max_logit) {
    reasons.push_back(unsupported(
        Rule::kMaxLogit,
        "the largest scores are an output (max_logit): cuDNN's graphs with score functions do not write them"));
  }
  if (is_float8(dtype)) {
    // It builds forwards, too, whose sums lose small terms: docs/internals/cudnn_plans.md.
    reasons.push_back(unsupported(Rule::kDtype, concat("q, k and v are ", to_string(dtype),
                                                       ": cuDNN's fused attention is right for f16 and bf16")));
  }
  if (dtype_kv) {
    reasons.push_back(
        unsupported(Rule::kDtype, concat("k and v are ", to_string(*dtype_kv), ", q is ", to_string(dtype),
                                         ": cuDNN's fused attention takes q, k and v of one dtype")));
  }
  if (problem.dtype == DType::kF32) {
    reasons.push_back(unsupported(Rule::kDtype, "q, k and v are f32: cuDNN's fused attention takes f16 and bf16"));
  }
  object_to_head_dim("dim_qk", problem.dim_qk, reasons);
  object_to_head_dim("dim_v", problem.dim_v, reasons);
  object_to_strides("q", TensorRole::kQ, problem, reasons);
  object_to_strides("k", TensorRole::kK, problem, reasons);
  object_to_strides("v", TensorRole::kV, problem, reasons);
  object_to_strides("o", TensorRole::kO, problem, reasons);
  if (direction == Direction::kBackward) {
    for (const TensorRole role : {TensorRole::kDO, TensorRole::kDQ, TensorRole::kDK, TensorRole::kDV})
      object_to_strides(to_string(role), role, problem, reasons);
  }
  if (direction == Direction::kBackward && problem.seq_q < kMinBackwardRows) {
    reasons.push_back(unsupported(
        Rule::kOneQueryRow, concat("expected at least ", kMinBackwardRows, " query rows, found seq_q ", problem.seq_q,
                                   ": cuDNN's backward of few rows writes NaN for some inputs")));
  }
  const bool fixed_order = deterministic && direction == Direction::kBackward;
  // The kernels that cuDNN 9.19 generates there do not compile for any tried modifier of the value, and for some shapes
  // with a mask alone.
  if (fixed_order && compute_capability && *compute_capability / 10 == kDataCentreBlackwell) {
    reasons.push_back(unsupported(
        Rule::kDeterministic, concat("deterministic gradients are wanted: cuDNN's kernels for them do not compile with "
                                     "score functions on sm_",
                                     *compute_capability)));
  }
  return reasons;
}

}  // namespace scoremod::backend::cudnn
