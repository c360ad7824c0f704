#include "planner/selection.hpp"

#include <algorithm>
#include <span>
#include <string_view>

#include "backend/left_out.hpp"
#include "base/environment.hpp"
#include "base/fail.hpp"

namespace scoremod::planner {
namespace {

using backend::Backend;

/// The pieces between commas, without spaces around them.
std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    std::string_view piece = text.substr(0, end);
    while (piece.starts_with(' ')) piece.remove_prefix(1);
    while (piece.ends_with(' ')) piece.remove_suffix(1);
    if (!piece.empty()) pieces.emplace_back(piece);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return pieces;
}

/// A list's names in order, and those left out.
struct Wish {
  std::vector<const Backend*> named;
  std::vector<const Backend*> left_out;
};

Wish parse(const std::vector<std::string>& list) {
  Wish wish;
  for (const std::string& entry : list) {
    const bool out = entry.starts_with('-');
    if (out && backend::is_left_out(entry.substr(1))) continue;
    const Backend& backend = backend::find_backend(out ? entry.substr(1) : entry);
    auto& to = out ? wish.left_out : wish.named;
    if (std::ranges::find(to, &backend) == to.end()) to.push_back(&backend);
  }
  return wish;
}

MemoryKind memory_of(const Wish& wish, const CompileOptions& options, bool of_caller) {
  if (options.memory) return *options.memory;
  // The environment speaks of backends, not of where a caller's tensors lie.
  if (!of_caller || wish.named.empty()) return MemoryKind::kHost;
  const MemoryKind first = wish.named.front()->memory().kind();
  const bool all = std::ranges::all_of(wish.named, [&](const Backend* b) { return b->memory().kind() == first; });
  return all ? first : MemoryKind::kHost;
}

/// The one backend that the options name.
const Backend& named_backend(const CompileOptions& options) {
  const Backend& named = backend::find_backend(options.backend);
  const MemoryKind kind = named.memory().kind();
  if (options.memory && *options.memory != kind) {
    fail_argument("backend '", named.name(), "' takes ", to_string(kind), " memory, found ", to_string(*options.memory),
                  " asked for; leave the memory out or name another backend");
  }
  if (!options.backends.empty()) {
    fail_argument("expected 'backend' or 'backends', found both; leave one of them out");
  }
  return named;
}

}  // namespace

Selection select(const CompileOptions& options) {
  if (!options.backend.empty()) {
    const Backend& named = named_backend(options);
    return {{&named}, named.memory().kind(), true, "the caller"};
  }
  const bool of_caller = !options.backends.empty();
  const std::vector<std::string> list =
      of_caller ? options.backends : pieces_of(environment_variable("SCOREMOD_BACKENDS"));
  const Wish wish = parse(list);
  Selection selection;
  selection.memory = memory_of(wish, options, of_caller);
  selection.in_order = !wish.named.empty();
  selection.decided_by = of_caller ? "the caller" : list.empty() ? "predicted time" : "SCOREMOD_BACKENDS";
  const std::span<const Backend* const> from = wish.named.empty() ? backend::backends() : wish.named;
  selection.backends.reserve(from.size());
  for (const Backend* backend : from) {
    const bool out = std::ranges::find(wish.left_out, backend) != wish.left_out.end();
    if (!out && !backend->is_companion() && backend->memory().kind() == selection.memory) {
      selection.backends.push_back(backend);
    }
  }
  return selection;
}

std::vector<const Backend*> with_companions(std::vector<const Backend*> backends) {
  if (backends.empty()) return backends;
  const MemoryKind memory = backends.front()->memory().kind();
  for (const Backend* backend : backend::backends()) {
    if (backend->is_companion() && backend->memory().kind() == memory) backends.push_back(backend);
  }
  return backends;
}

}  // namespace scoremod::planner
