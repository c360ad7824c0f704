#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace scoremod::backend::cudnn {

/// The explored version ("9.19.0") that is likeliest to answer as this one does. It is the version itself, else one
/// with the same major and minor number, else one with the same major number. Among several it is the newest that is
/// not newer, else the oldest. Nothing if no version has the same major number, or `version` is no version.
std::optional<std::string_view> nearest_version(std::string_view version, std::span<const std::string_view> explored);

}  // namespace scoremod::backend::cudnn
