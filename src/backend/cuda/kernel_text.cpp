#include "backend/cuda/kernel_text.hpp"

#include <algorithm>
#include <optional>
#include <set>

namespace scoremod::backend::cuda {
namespace {

constexpr std::string_view kOpen = "/*{";
constexpr std::string_view kClose = "}*/";

/// The position of a hole in a text: [begin, end) with its markers, [inner_begin, inner_end) without.
struct Place {
  std::string_view name;
  std::size_t begin = 0, end = 0, inner_begin = 0, inner_end = 0;
};

/// The next marker from `from` on: its name, empty for an end, and where it stands.
std::optional<Place> next_marker(std::string_view text, std::size_t from) {
  const std::size_t begin = text.find(kOpen, from);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::size_t name = begin + kOpen.size(), close = text.find(kClose, name);
  if (close == std::string_view::npos) fail_bug("a marker of kernel text has no '}*/': ", text.substr(begin, 40));
  return Place{text.substr(name, close - name), begin, close + kClose.size(), 0, 0};
}

/// The first hole that begins at `from` or later, with its nested ones inside.
std::optional<Place> next_hole(std::string_view text, std::size_t from) {
  std::optional<Place> hole = next_marker(text, from);
  if (!hole) return std::nullopt;
  if (hole->name.empty())
    fail_bug("an end of a hole without a beginning in kernel text: ", text.substr(hole->begin, 40));
  hole->inner_begin = hole->end;
  int depth = 1;
  while (depth > 0) {
    const std::optional<Place> marker = next_marker(text, hole->end);
    if (!marker) fail_bug("hole '", hole->name, "' of kernel text has no end");
    depth += marker->name.empty() ? -1 : 1;
    hole->inner_end = marker->begin;
    hole->end = marker->end;
  }
  return hole;
}

}  // namespace

std::string fill(std::string_view text, std::initializer_list<Hole> holes) {
  std::string out;
  std::set<std::string_view> filled;
  std::size_t from = 0;
  while (const std::optional<Place> place = next_hole(text, from)) {
    const auto* hole = std::ranges::find(holes, place->name, &Hole::name);
    if (hole == holes.end()) fail_bug("nothing to fill hole '", place->name, "' of kernel text with");
    out += text.substr(from, place->begin - from);
    out += hole->text;
    filled.insert(hole->name);
    from = place->end;
  }
  for (const Hole& hole : holes) {
    if (!filled.contains(hole.name)) fail_bug("kernel text has no hole '", hole.name, "'");
  }
  return out.append(text.substr(from));
}

std::string_view part(std::string_view text, std::string_view name) {
  std::size_t from = 0;
  while (const std::optional<Place> place = next_hole(text, from)) {
    if (place->name == name) return text.substr(place->inner_begin, place->inner_end - place->inner_begin);
    from = place->inner_begin;
    // Past the ends of the holes that this one lies in.
    while (const std::optional<Place> marker = next_marker(text, from)) {
      if (!marker->name.empty()) break;
      from = marker->end;
    }
  }
  fail_bug("kernel text has no part '", name, "'");
}

}  // namespace scoremod::backend::cuda
