#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "scoremod/attention.hpp"

namespace scoremod::backend {

/// Why something cannot run, as a rule with a name that stays. unsupported.cpp has the one table of them;
/// docs/unsupported_reasons.md is made from it.
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
};

struct RuleInfo {
  Rule rule;
  const char* id;       ///< what users and tests go by; never changed
  const char* meaning;  ///< of the rule, for the page
  const char* remedy;   ///< what would make it supported
};

/// Every rule, in the order of the enum.
std::span<const RuleInfo> unsupported_rules();
const RuleInfo& info(Rule rule);

/// A reason by this rule. `text` says what was expected and what was found; the remedy is the rule's unless another is
/// given.
UnsupportedReason unsupported(Rule rule, std::string text, std::string remedy = {});

}  // namespace scoremod::backend
