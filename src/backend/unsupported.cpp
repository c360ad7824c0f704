#include "backend/unsupported.hpp"

#include <array>
#include <utility>

#include "base/fail.hpp"
#include "base/pages.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend {
namespace {

constexpr std::array kRules{
    RuleInfo{Rule::kNoDevice, "no_device", "There is no CUDA driver, CUDA runtime or device in this process.",
             "run on a machine with a CUDA device and its driver, or use the cpu backend"},
    RuleInfo{Rule::kNoLibrary, "no_library",
             "A library that the backend needs is not installed, or not of a version "
             "that it can use.",
             "install the library where the loader finds it"},
    RuleInfo{Rule::kDtype, "dtype", "The backend does not compute in the problem's dtype.",
             "cast q, k and v, or use the cpu backend"},
    RuleInfo{Rule::kHeadDim, "head_dim", "A head dim is no multiple of what the backend's tiles need, or too large.",
             "pad the tensors with zeros"},
    RuleInfo{Rule::kHeadDimStride, "head_dim_stride", "Neighbours along the head dim are not neighbours in memory.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kCopyAlignment, "copy_alignment", "A stride is no multiple of what the backend copies at a time.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kDeterministic, "deterministic",
             "The backend has no gradients that are the same bits each time on this architecture.",
             "leave 'deterministic' out, or use the cpu backend"},
    RuleInfo{Rule::kOneQueryRow, "one_query_row",
             "The backend computes the backward of few query rows wrongly for some data.",
             "use another engine or the cpu backend, or pad q and d_o with rows of zeros"},
    RuleInfo{Rule::kWorkspaceLimit, "workspace_limit", "A direction needs more scratch memory than the limit.",
             "split the batch or the heads, or raise the limit"},
    RuleInfo{Rule::kUnexploredVersion, "unexplored_version", "Nothing is known of this version of a library.",
             "use a version that " SCOREMOD_PAGE("internals/cudnn") " names, or explore this one"},
    RuleInfo{Rule::kVerificationForbidden, "verification_forbidden",
             "What would run was never seen to be right here, "
             "and the run that would show it is forbidden.",
             "let the first use verify it: leave SCOREMOD_VERIFICATION out"},
    RuleInfo{Rule::kNoLowering, "no_lowering",
             "Some part of the program has no pattern that is known to be right in cuDNN.",
             "write it another way, or use the cpu backend"},
    RuleInfo{Rule::kEngineRefused, "engine_refused", "The backend's own checks refused the problem.",
             "use another engine, size or layout"},
    RuleInfo{Rule::kNoTrial, "no_trial", "No small problem of the same structure can be made to verify it.",
             "use another engine, or report it"},
    RuleInfo{Rule::kWrongResult, "wrong_result",
             "The backend accepted the problem and computed something else on this device.",
             "use another engine or another version of the library"},
    RuleInfo{Rule::kOperandGradientSize, "operand_gradient_size",
             "The operand-gradient kernel exceeds the node limit, or a table has too many entries.",
             "ask for fewer gradients, or use the cpu backend"},
    RuleInfo{Rule::kOperandGradientStride, "operand_gradient_stride",
             "The operand-gradient pass cannot read a tensor with these strides.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kNoOperandGradient, "no_operand_gradient", "No backend of this memory computes operand gradients.",
             "give the operands \"gradient\": false, or use the cpu backend"},
    RuleInfo{Rule::kSink, "sink", "The backend does not compute the gradient of a learned sink.",
             "give the sink \"gradient\": false, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kDropout, "dropout", "The backend cannot reproduce scoremod's dropout mask.",
             "leave 'dropout' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kMaxLogit, "max_logit", "The backend does not write the largest score of each row.",
             "leave 'max_logit' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kRagged, "ragged", "The backend takes no varlen sequences.",
             "pad the tensors and give lengths, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kPaged, "paged", "The backend reads no paged KV cache.",
             "gather k and v, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kOutputDtype, "output_dtype", "The backend requires o and d_o to have the dtype of q, k and v.",
             "leave 'dtype_o' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kAmaxGradients, "amax_gradients",
             "The backend does not write the largest magnitudes of dq, dk and dv, since it rounds them in its kernels.",
             "leave 'amax_gradients' out and reduce dq, dk and dv, or use the cpu backend"},
    RuleInfo{Rule::kBlockScales, "block_scales",
             "An engine that reads FP8 tensors as they are multiplies them by one scale, or one for each head; decode "
             "kernels by one for each row, too.",
             "use an engine that converts them to 16 bits, or the cpu backend"},
};

}  // namespace

std::span<const RuleInfo> unsupported_rules() { return kRules; }

const RuleInfo& info(Rule rule) {
  for (const RuleInfo& row : kRules) {
    if (row.rule == rule) return row;
  }
  fail_bug("a rule without a row in the table of unsupported reasons");
}

void object_to_places(const AttentionProblem& problem, std::vector<UnsupportedReason>& reasons) {
  const auto object = [&](Rule rule, const auto&... text) { reasons.push_back(unsupported(rule, concat(text...))); };
  if (problem.tokens_q) object(Rule::kRagged, "expected dense queries, found ragged ones (tokens_q)");
  if (problem.tokens_kv) object(Rule::kRagged, "expected dense keys, found ragged ones (tokens_kv)");
  if (problem.paged) object(Rule::kPaged, "expected dense keys and values, found paged ones");
  if (problem.dtype_o && *problem.dtype_o != problem.dtype) {
    object(Rule::kOutputDtype, "expected o of the dtype of q, ", to_string(problem.dtype), ", found ",
           to_string(*problem.dtype_o));
  }
}

void object_to_block_scales(const AttentionProblem& problem, std::vector<UnsupportedReason>& reasons) {
  if (!problem::has_block_scales(problem)) return;
  for (const problem::TensorRole role : {problem::TensorRole::kQ, problem::TensorRole::kK, problem::TensorRole::kV}) {
    const char* name = problem::descale_of(role);
    if (problem::has_block_scales(problem, name))
      reasons.push_back(unsupported(
          Rule::kBlockScales, concat("expected a scale of the tensor, found '", name, "' with scales of its blocks")));
  }
}

UnsupportedReason unsupported(Rule rule, std::string text, std::string remedy) {
  const RuleInfo& row = info(rule);
  return {row.id, "", std::move(text), remedy.empty() ? row.remedy : std::move(remedy)};
}

}  // namespace scoremod::backend
