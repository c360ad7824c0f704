#include "backend/cudnn/graph/refusal.hpp"

#include <algorithm>
#include <cstddef>

namespace scoremod::backend::cudnn {

bool reports_only_refusals(std::string_view text) {
  constexpr std::string_view kStatus = "CUDNN_STATUS_";
  constexpr std::string_view kNotSupported = "CUDNN_STATUS_NOT_SUPPORTED";
  bool refused = false;
  for (std::size_t at = text.find(kStatus); at != std::string_view::npos; at = text.find(kStatus, at + 1)) {
    const std::string_view before = text.substr(0, at);
    const std::string_view name =
        text.substr(at, text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", at) - at);
    const bool reported = before.ends_with("code: ") || before.ends_with("cudnn_status: ") ||
                          text.substr(at + name.size()).starts_with("; Reason:");
    if (!reported) continue;
    if (!name.starts_with(kNotSupported)) return false;
    refused = true;
  }
  return refused;
}

std::string short_refusal(std::string_view text) {
  constexpr std::string_view kReason = "Reason: ";
  constexpr std::string_view kEngine = "{\"engineId\"";
  std::string reasons;
  for (std::size_t at = text.find(kReason); at != std::string_view::npos; at = text.find(kReason, at)) {
    at += kReason.size();
    const std::string_view reason = text.substr(at, text.find('\n', at) - at);
    if (reasons.find(reason) == std::string::npos) (reasons += reasons.empty() ? "" : "; ") += reason;
    at = std::min(text.find(kEngine, at), text.size());
  }
  return reasons.empty() ? std::string(text) : reasons;
}

}  // namespace scoremod::backend::cudnn
