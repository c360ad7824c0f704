#include "backend/unsupported.hpp"

#include <array>
#include <utility>

#include "base/fail.hpp"

namespace scoremod::backend {
namespace {

constexpr std::array kRules{
    RuleInfo{Rule::kNoDevice, "no_device", "There is no CUDA driver, CUDA runtime or device in this process.",
             "run on a machine with a CUDA device and its driver, or use the cpu backend"},
    RuleInfo{Rule::kNoLibrary, "no_library",
             "A library that the engine needs is not installed, or not of a version "
             "that it can use.",
             "install the library where the loader finds it"},
    RuleInfo{Rule::kDtype, "dtype", "The engine does not compute in the problem's dtype.",
             "cast q, k and v, or use the cpu backend"},
    RuleInfo{Rule::kHeadDim, "head_dim", "A head dim is no multiple of what the engine's tiles need, or too large.",
             "pad the tensors with zeros"},
    RuleInfo{Rule::kHeadDimStride, "head_dim_stride", "Neighbours along the head dim are not neighbours in memory.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kCopyAlignment, "copy_alignment", "A stride is no multiple of what the engine copies at a time.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kDeterministic, "deterministic",
             "The engine, or one of its kernels, has no gradients that are the "
             "same bits each time for this architecture.",
             "leave 'deterministic' out, or use the cpu backend"},
    RuleInfo{Rule::kOneQueryRow, "one_query_row",
             "The backward of one query row, or of few, is wrong on the engine for some "
             "data.",
             "use another engine or the cpu backend, or pad q and d_o with rows of zeros"},
    RuleInfo{Rule::kWorkspaceLimit, "workspace_limit", "A direction needs more scratch memory than the limit.",
             "split the batch or the heads, or raise the limit"},
    RuleInfo{Rule::kUnexploredVersion, "unexplored_version", "Nothing is known of this version of a library.",
             "use a version that docs/internals/cudnn.md names, or explore this one"},
    RuleInfo{Rule::kVerificationForbidden, "verification_forbidden",
             "What would run was never seen to be right here, "
             "and the run that would show it is forbidden.",
             "let the first use verify it: leave SCOREMOD_VERIFICATION out"},
    RuleInfo{Rule::kNoLowering, "no_lowering",
             "Some part of the program has no pattern that is known to be right in the "
             "engine.",
             "write it another way, or use the cpu backend"},
    RuleInfo{Rule::kEngineRefused, "engine_refused", "The engine's own checks refused what it was given.",
             "use another engine, size or layout"},
    RuleInfo{Rule::kNoTrial, "no_trial",
             "The small problem of the same structure that would be verified cannot be made.",
             "use another engine, or report it"},
    RuleInfo{Rule::kWrongResult, "wrong_result",
             "The engine accepted the problem and computed something else on this "
             "device.",
             "use another engine or another version of the library"},
    RuleInfo{Rule::kOperandGradientSize, "operand_gradient_size",
             "The gradients of operands are too large a kernel, or "
             "a table has too many entries.",
             "ask for fewer gradients, or use the cpu backend"},
    RuleInfo{Rule::kOperandGradientStride, "operand_gradient_stride",
             "The pass that makes operands' gradients cannot "
             "read a tensor with these strides.",
             "copy the tensor into a dense layout"},
    RuleInfo{Rule::kNoOperandGradient, "no_operand_gradient",
             "No engine of this memory makes the gradients of operands.",
             "give the operands \"gradient\": false, or use the cpu backend"},
    RuleInfo{Rule::kSink, "sink", "The engine has no sink in its softmax.",
             "leave 'sink' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kDropout, "dropout", "The engine has no dropout whose mask others can compute again.",
             "leave 'dropout' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kMaxLogit, "max_logit", "The engine does not write the largest score of each row.",
             "leave 'max_logit' out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kRagged, "ragged", "The engine takes no sequences that lie one after the other without padding.",
             "pad the tensors and give lengths, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kPaged, "paged", "The engine reads no keys and values from the blocks of a pool.",
             "gather k and v, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kGradientLayout, "gradient_layout",
             "The engine writes gradients as their tensors lie, and reads d_o "
             "as it writes o.",
             "leave the layouts of gradients out, or use the kernels or the cpu backend"},
    RuleInfo{Rule::kOutputDtype, "output_dtype", "The engine writes o, or reads d_o, in the dtype of q, k and v alone.",
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
