#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace scoremod::backend::cudnn {

/// Which of the explored versions ("9.19.0") is likeliest to answer as this one does: itself, or else of those with the
/// same major and minor number, or else of all with the same major number, the newest that is not newer, or else the
/// oldest. Nothing where no version has the same major number, or `version` is no version.
std::optional<std::string_view> nearest_version(std::string_view version, std::span<const std::string_view> explored);

}  // namespace scoremod::backend::cudnn
