#include "backend/cuda/text/kernel_text.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "base/fork_mutex.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr std::string_view kOpen = "/*{";
constexpr std::string_view kClose = "}*/";

/// Never destroyed: threads may plan while the process ends.
ForkMutex& added_mutex() {
  static auto& made = *new ForkMutex;
  return made;
}

std::span<const KernelFile> added_files;

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

const KernelFile& kernel_file(std::string_view path) {
  const std::span<const KernelFile> files = embedded::cuda_files();
  const auto found = std::ranges::lower_bound(files, path, {}, &KernelFile::path);
  if (found != files.end() && found->path == path) return *found;
  const std::scoped_lock lock(added_mutex());
  const auto added = std::ranges::find(added_files, path, &KernelFile::path);
  if (added == added_files.end()) fail_bug("no kernel file is named '", path, "'");
  return *added;
}

void set_added_files(std::span<const KernelFile> files) {
  const std::scoped_lock lock(added_mutex());
  added_files = files;
}

std::string_view file_text(std::string_view path) { return kernel_file(path).text; }

std::string fill(std::string_view text, const std::function<std::string_view(std::string_view name)>& value) {
  std::string out;
  std::size_t from = 0;
  while (const std::optional<Place> place = next_hole(text, from)) {
    out += text.substr(from, place->begin - from);
    out += value(place->name);
    from = place->end;
  }
  return out.append(text.substr(from));
}

std::string fill(std::string_view text, std::initializer_list<Hole> holes) {
  std::set<std::string_view> filled;
  std::string out = fill(text, [&](std::string_view name) -> std::string_view {
    const auto* hole = std::ranges::find(holes, name, &Hole::name);
    if (hole == holes.end()) fail_bug("nothing to fill hole '", name, "' of kernel text with");
    filled.insert(hole->name);
    return hole->text;
  });
  for (const Hole& hole : holes) {
    if (!filled.contains(hole.name)) fail_bug("kernel text has no hole '", hole.name, "'");
  }
  return out;
}

std::vector<std::string_view> holes_of(std::string_view text) {
  std::vector<std::string_view> names;
  std::size_t from = 0;
  while (const std::optional<Place> place = next_hole(text, from)) {
    names.push_back(place->name);
    from = place->end;
  }
  return names;
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
