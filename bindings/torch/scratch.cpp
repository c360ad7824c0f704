#include "scratch.hpp"

#include <map>
#include <utility>
#include <vector>

namespace scoremod::torch_binding {
namespace {

/// More streams than that have only those who make one for each call.
constexpr std::size_t kMostStreams = 256;

using Piles = std::map<std::pair<int, void*>, std::vector<Scratch>>;

/// The GIL guards them. They are never destroyed: Python is gone before statics are.
Piles& piles() {
  static auto& made = *new Piles;
  return made;
}

}  // namespace

Scratch new_scratch(const Ref& make, std::size_t bytes) {
  const Ref size = checked(PyLong_FromSize_t(bytes));
  const Ref made = call(make, size.get());
  return {Ref::to(item(made.get(), 0)), pointer(item(made.get(), 1))};
}

Scratch take_scratch(int device, void* stream, const Ref& make) {
  const auto found = piles().find({device, stream});
  if (found == piles().end() || found->second.empty()) return new_scratch(make, kKeptScratch);
  Scratch taken = std::move(found->second.back());
  found->second.pop_back();
  return taken;
}

void keep_scratch(int device, void* stream, Scratch scratch) {
  Piles dropped;  // freed last, as PyTorch may run Python's code
  if (piles().size() >= kMostStreams && !piles().contains({device, stream})) dropped.swap(piles());
  piles()[{device, stream}].push_back(std::move(scratch));
}

}  // namespace scoremod::torch_binding
