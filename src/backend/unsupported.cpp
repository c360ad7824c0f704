#include "backend/unsupported.hpp"

#include <array>
#include <utility>

#include "base/fail.hpp"

namespace scoremod::backend {
namespace {

constexpr std::array kRules{
    RuleInfo{Rule::kNoDevice, "no_device", "There is no CUDA driver, CUDA runtime or device in this process.",
             "run on a machine with a CUDA device and its driver, or use the cpu backend"},
    RuleInfo{Rule::kNoLibrary, "no_library", "A library of the backend is missing, or its version does not fit.",
             "install the library where the loader finds it"},
    RuleInfo{Rule::kDtype, "dtype", "The backend does not compute in the problem's dtype.",
             "cast q, k and v, or use the cpu backend"},
    RuleInfo{Rule::kHeadDim, "head_dim",
             "A head dim is too large, or no multiple of the size that the backend's tiles need.",
             "pad the tensors with zeros"},
    RuleInfo{Rule::kHeadDimStride, "head_dim_stride", "Neighbours along the head dim are not neighbours in memory.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kCopyAlignment, "copy_alignment", "A stride is no multiple of the width of the backend's copies.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kDeterministic, "deterministic",
             "The backend, or one of its kernels, has no deterministic gradients for this architecture.",
             "leave 'deterministic' out, or use the cpu backend"},
    RuleInfo{Rule::kOneQueryRow, "one_query_row",
             "The backend's backward of one query row, or of few, is wrong for some data.",
             "use another backend, or pad q and d_o with rows of zeros"},
    RuleInfo{Rule::kWorkspaceLimit, "workspace_limit", "A direction needs more scratch memory than the limit.",
             "split the batch or the heads, or raise the limit"},
    RuleInfo{Rule::kUnexploredVersion, "unexplored_version", "This version of a library was never explored.",
             "use a version that docs/cudnn_patterns.md names, or explore this one"},
    RuleInfo{Rule::kVerificationForbidden, "verification_forbidden",
             "The plan was never verified here, and SCOREMOD_VERIFICATION forbids the trial that would verify it.",
             "let the first use verify it: leave SCOREMOD_VERIFICATION out"},
    RuleInfo{Rule::kNoLowering, "no_lowering",
             "A part of the program has no pattern that is known to be right in the backend.",
             "write it another way, or use the cpu backend"},
    RuleInfo{Rule::kEngineRefused, "engine_refused", "The backend's own checks refused the plan.",
             "use another backend, size or layout"},
    RuleInfo{Rule::kNoTrial, "no_trial", "Verification needs a small problem of the same structure, and there is none.",
             "use another backend, or report it"},
    RuleInfo{Rule::kWrongResult, "wrong_result",
             "The backend accepted the problem, and its results on this device are wrong.",
             "use another backend or another version of the library"},
    RuleInfo{Rule::kOperandGradientSize, "operand_gradient_size",
             "The operand-gradient kernel exceeds the node limit, or a table has too many entries.",
             "ask for fewer gradients, or use the cpu backend"},
    RuleInfo{Rule::kOperandGradientStride, "operand_gradient_stride",
             "The operand-gradient pass cannot read a tensor with these strides.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kNoOperandGradient, "no_operand_gradient", "No backend for this memory computes operand gradients.",
             "give the operands \"gradient\": false, or use the cpu backend"},
    RuleInfo{Rule::kSink, "sink", "The backend has no sink in its softmax.",
             "leave 'sink' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kDropout, "dropout", "The backend cannot reproduce scoremod's dropout mask.",
             "leave 'dropout' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kMaxLogit, "max_logit", "The backend does not write the largest score of each row.",
             "leave 'max_logit' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kRagged, "ragged", "The backend does not support varlen sequences.",
             "pad the tensors and give lengths, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kPaged, "paged", "The backend does not support a paged KV cache.",
             "gather k and v, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kGradientLayout, "gradient_layout",
             "The backend requires dq/dk/dv and d_o to have the layouts of q/k/v and o.",
             "leave the layouts of gradients out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kOutputDtype, "output_dtype", "The backend requires o and d_o to have the dtype of q, k and v.",
             "leave 'dtype_o' out, or use the kernels or the cpu backend"},
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

UnsupportedReason unsupported(Rule rule, std::string text, std::string remedy) {
  const RuleInfo& row = info(rule);
  return {row.id, "", std::move(text), remedy.empty() ? row.remedy : std::move(remedy)};
}

}  // namespace scoremod::backend
