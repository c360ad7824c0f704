#include "base/nearest_name.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace scoremod {
namespace {

/// Longer names are not worth the quadratic time, and no known name is that long.
constexpr std::size_t kMaxCompared = 64;

/// The number of single-character edits between two names (Levenshtein's distance).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string suggestion(std::string_view found, std::span<const std::string> known) {
  // All names of one or two letters are one edit away from each other.
  if (found.size() < 3 || found.size() > kMaxCompared) return "";
  const std::string* nearest = nullptr;
  std::size_t least = std::max<std::size_t>(1, found.size() / 3) + 1;  // a third of the letters may be wrong
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(found, name);
    if (distance >= least) continue;
    least = distance;
    nearest = &name;
  }
  return nearest == nullptr ? "" : " (did you mean '" + *nearest + "'?)";
}

std::string name_list(std::span<const std::string> names) {
  if (names.empty()) return "none";
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? " and " : ", ";
    list += "'" + names[i] + "'";
  }
  return list;
}

}  // namespace scoremod
