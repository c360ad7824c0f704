#include "backend/cudnn/patterns/nearest_version.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

namespace scoremod::backend::cudnn {
namespace {

/// Major, minor and patch.
using Numbers = std::array<int, 3>;

std::optional<Numbers> numbers_of(std::string_view version) {
  Numbers numbers{};
  const char* at = version.data();
  const char* const end = at + version.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0 && (at == end || *at++ != '.')) return std::nullopt;
    const auto [next, error] = std::from_chars(at, end, numbers[i]);
    if (error != std::errc()) return std::nullopt;
    at = next;
  }
  return at == end ? std::optional(numbers) : std::nullopt;
}

}  // namespace

std::optional<std::string_view> nearest_version(std::string_view version, std::span<const std::string_view> explored) {
  const std::optional<Numbers> wanted = numbers_of(version);
  if (!wanted) return std::nullopt;
  // Smaller is nearer.
  struct Distance {
    bool other_minor, newer;
    Numbers from_newest;  ///< of versions that are not newer: the newest first
    auto operator<=>(const Distance&) const = default;
  };
  std::optional<std::string_view> nearest;
  std::optional<Distance> least;
  for (const std::string_view each : explored) {
    const std::optional<Numbers> numbers = numbers_of(each);
    if (!numbers || (*numbers)[0] != (*wanted)[0]) continue;
    Distance distance{(*numbers)[1] != (*wanted)[1], *numbers > *wanted, *numbers};
    if (!distance.newer) std::ranges::transform(*numbers, distance.from_newest.begin(), std::negate<>());
    if (least && *least <= distance) continue;
    least = distance;
    nearest = each;
  }
  return nearest;
}

}  // namespace scoremod::backend::cudnn
