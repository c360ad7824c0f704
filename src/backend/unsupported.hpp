#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

namespace scoremod::backend {

/// Why something cannot run, as a rule with a name that stays. unsupported.cpp has the one table of them;
/// docs/reference/unsupported_reasons.md is made from it.
enum class Rule : std::uint8_t {
  kNoDevice,
  kNoLibrary,
  kDtype,
  kHeadDim,
  kHeadDimStride,
  kCopyAlignment,
  kDeterministic,
  kOneQueryRow,
  kWorkspaceLimit,
  kUnexploredVersion,
  kVerificationForbidden,
  kNoLowering,
  kEngineRefused,
  kNoTrial,
  kWrongResult,
  kOperandGradientSize,
  kOperandGradientStride,
  kNoOperandGradient,
  kSink,
  kDropout,
  kMaxLogit,
  kRagged,
  kPaged,
  kOutputDtype,
  kAmaxGradients,
  kBlockScales,
};

struct RuleInfo {
  Rule rule;
  const char* id;       ///< used by users and tests; never changed
  const char* meaning;  ///< of the rule, for the page
  const char* remedy;   ///< what would make it supported
};

/// Every rule, in the order of the enum.
std::span<const RuleInfo> unsupported_rules();
const RuleInfo& info(Rule rule);

/// Adds the reasons of a backend whose tensors are all dense and of one dtype: varlen, paged, dtype_o.
void object_to_places(const AttentionProblem& problem, std::vector<UnsupportedReason>& reasons);

/// Adds the reason of an engine whose FP8 tensors have a scale each, or one for each head.
void object_to_block_scales(const AttentionProblem& problem, std::vector<UnsupportedReason>& reasons);

/// A reason by this rule. `text` says what was expected and what was found; the remedy is the rule's unless another is
/// given.
UnsupportedReason unsupported(Rule rule, std::string text, std::string remedy = {});

}  // namespace scoremod::backend
