#include "backend/cudnn/problem_rules.hpp"

#include <algorithm>

#include "backend/cudnn/predicted_workspace.hpp"
#include "base/fail.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cudnn {
namespace {

using problem::TensorRole;

/// Head dims that cuDNN 9.19 builds plans for; in backward more than 128 on Hopper only.
constexpr std::int64_t kHeadDimMultiple = 8;
constexpr std::int64_t kMaxHeadDim = 256;
constexpr std::int64_t kMaxHeadDimBackwardElsewhere = 128;
/// The family of sm_100 and sm_103.
constexpr int kDataCentreBlackwell = 10;
/// cuDNN's copies move 16 bytes at a time.
constexpr std::int64_t kCopyBytes = 16;

void object_to_head_dim(const char* name, std::int64_t dim, const AttentionProblem& problem, int compute_capability,
                        std::vector<std::string>& reasons) {
  const bool large_backward = compute_capability == 90;
  const std::int64_t most = problem.backward && !large_backward ? kMaxHeadDimBackwardElsewhere : kMaxHeadDim;
  if (dim % kHeadDimMultiple != 0 || dim > most) {
    reasons.push_back(concat(name, " is ", dim, ": cuDNN's fused attention takes multiples of ", kHeadDimMultiple,
                             " up to ", most, problem.backward ? " with backward" : "", " on sm_", compute_capability,
                             "; pad the tensors with zeros"));
  }
}

void object_to_strides(const char* name, TensorRole role, const AttentionProblem& problem,
                       std::vector<std::string>& reasons) {
  const problem::TensorShape shape = problem::shape_of(problem, role);
  const Strides strides = problem::strides_of(problem, role);
  if (strides.dim != 1 && shape.dim > 1) {
    reasons.push_back(concat(name, " has stride ", strides.dim,
                             " along the head dim: cuDNN's fused attention takes 1; copy it into a dense layout"));
  }
  const std::int64_t elements = kCopyBytes / static_cast<std::int64_t>(size_of(problem.dtype));
  const auto object = [&](const char* axis, std::int64_t extent, std::int64_t stride) {
    if (extent == 1 || stride % elements == 0) return;
    reasons.push_back(concat(name, " has stride ", stride, " along ", axis,
                             ": cuDNN's fused attention takes multiples of ", elements, " elements (", kCopyBytes,
                             " bytes)"));
  };
  object("batch", shape.batch, strides.batch);
  object("heads", shape.heads, strides.head);
  object("sequence", shape.sequence, strides.sequence);
}

void object_to_determinism(const AttentionProblem& problem, int compute_capability, std::vector<std::string>& reasons) {
  // cuDNN 9.19 generates a kernel that does not compile for every modifier of the value that was tried there, and for
  // some shapes with a mask alone.
  if (compute_capability / 10 == kDataCentreBlackwell) {
    reasons.push_back(
        concat("gradients that are the same bits each time are wanted: cuDNN's kernels for that do not "
               "compile with score functions on sm_",
               compute_capability, "; leave 'deterministic' out, or use the cpu backend"));
    return;
  }
  const std::size_t bytes = predicted_deterministic_workspace(problem, compute_capability);
  std::string reason = workspace_objection(problem, "backward", bytes);
  if (!reason.empty()) reasons.push_back(std::move(reason));
}

}  // namespace

std::vector<std::string> problem_objections(const AttentionProblem& problem, int compute_capability) {
  // Every member is named: one that is added does not compile until it is lowered, or refused here. The program and
  // its operands are judged by the forms that they need, and the other members that are not looked at here are run.
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, dtype, q, k, v, o, scale,
                                program, operands, backward, stats, index_offsets, deterministic] = problem;
  std::vector<std::string> reasons;
  if (problem.dtype == DType::kF32) {
    reasons.push_back(
        "q, k and v are f32: cuDNN's fused attention takes f16 and bf16; cast them, or use the cpu backend");
    return reasons;
  }
  object_to_head_dim("dim_qk", problem.dim_qk, problem, compute_capability, reasons);
  object_to_head_dim("dim_v", problem.dim_v, problem, compute_capability, reasons);
  object_to_strides("q", TensorRole::kQ, problem, reasons);
  object_to_strides("k", TensorRole::kK, problem, reasons);
  object_to_strides("v", TensorRole::kV, problem, reasons);
  object_to_strides("o", TensorRole::kO, problem, reasons);
  if (problem.backward && problem.deterministic) object_to_determinism(problem, compute_capability, reasons);
  return reasons;
}

std::vector<std::string> backward_objections(const AttentionProblem& problem) {
  if (problem.seq_q > 1) return {};
  // Seen with 9.19 on an H200: dq, dk and dv all NaN in 4 of some 4000 random problems, where LSEs were far below zero
  // or a row had no key. A trial sees that for some inputs only.
  return {
      "there is one query row (seq_q is 1): cuDNN's backward writes NaN there for some inputs; pad q and d_o with a "
      "row "
      "of zeros, or use the cpu backend"};
}

}  // namespace scoremod::backend::cudnn
