#include "c_structs/drawn_compile.hpp"

#include <limits>
#include <string>
#include <string_view>

namespace scoremod::fuzz {
namespace {

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kEnds[] = {
    offsetof(scoremod_compile_options, device_properties), offsetof(scoremod_compile_options, new_sizes),
    offsetof(scoremod_compile_options, support_level),     offsetof(scoremod_compile_options, max_workspace),
    offsetof(scoremod_compile_options, backends),          offsetof(scoremod_compile_options, memory),
    offsetof(scoremod_compile_options, disabled_passes),   offsetof(scoremod_compile_options, backend),
};

/// Names, one of which may be a null pointer; `count` is theirs, but for an array that is a null pointer.
std::vector<const char*> draw_names(Choices& choices, std::initializer_list<const char*> right, std::size_t& count) {
  std::vector<const char*> names;
  for (int left = choices.among({0, 1, 2}); left > 0; --left) {
    const std::size_t number = choices.byte() % (right.size() + 2);
    names.push_back(number < right.size() ? right.begin()[number] : number == right.size() ? "no such name" : nullptr);
  }
  count = names.size();
  if (names.empty()) count = choices.right_or<std::size_t>(0, {1, ~std::size_t{0}});
  return names;
}

const char* const* array_of(const std::vector<const char*>& names) { return names.empty() ? nullptr : names.data(); }

std::vector<std::string> plain_names(const char* const* names, std::size_t count) {
  if (count > 0 && names == nullptr) refuse("an array that is NULL");
  std::vector<std::string> plain;
  for (std::size_t i = 0; i < count; ++i) {
    if (names[i] == nullptr) refuse("a name that is NULL");
    plain.emplace_back(names[i]);
  }
  return plain;
}

}  // namespace

DrawnCompile draw_compile(Choices& choices) {
  DrawnCompile drawn;
  if (choices.byte() % 2 == 0) return drawn;
  scoremod_compile_options options{};
  options.backend = choices.among<const char*>({"", nullptr, "cpu", "reference"});
  options.backend = choices.right_or<const char*>(options.backend, {"abacus", "cudnn", "kernels"});
  options.threads = choices.right_or(0, {1, 2, kLargest, -1, -kLargest - 1});
  options.has_device = choices.among({0, 0, 0, 1, -1});
  options.device = choices.right_or(0, {1, -1, kLargest});
  options.memory = choices.right_or<const char*>(nullptr, {"", "host", "cuda", "disk"});
  options.max_workspace = choices.among<std::size_t>({0, 1, ~std::size_t{0}});
  options.autotune = choices.among({0, 1, -1});
  options.support_level = choices.among({0, 1, 2, -1});
  options.new_sizes = choices.right_or(0, {1, 2, 3, -1});
  options.device_properties = choices.right_or<const char*>(nullptr, {"{}", ""});
  if (choices.rarely()) drawn.passes = draw_names(choices, {"simplify", "cse"}, options.disabled_pass_count);
  if (choices.rarely()) drawn.backends = draw_names(choices, {"cpu", "reference", "-cpu", "-"}, options.backend_count);
  drawn.options = options;
  drawn.size = draw_size(choices, sizeof options, kEnds);
  return drawn;
}

MadeCompile::MadeCompile(const DrawnCompile& drawn) {
  if (!drawn.options) return;
  scoremod_compile_options options = *drawn.options;
  options.disabled_passes = array_of(drawn.passes);
  options.backends = array_of(drawn.backends);
  given_.emplace(options, drawn.size);
}

CompileOptions MadeCompile::plain() const {
  CompileOptions made;
  if (!given_) return made;
  const scoremod_compile_options options = given_->understood();
  if (options.device_properties != nullptr) refuse("another device");
  if (options.backend != nullptr) made.backend = options.backend;
  made.backends = plain_names(options.backends, options.backend_count);
  const std::string_view memory = options.memory != nullptr ? options.memory : "";
  if (memory == "host") made.memory = MemoryKind::kHost;
  if (memory == "cuda") made.memory = MemoryKind::kCuda;
  if (memory == "disk") refuse("a kind of memory");
  if (options.has_device != 0) made.device = options.device;
  made.threads = options.threads;
  if (options.max_workspace != 0) made.max_workspace = options.max_workspace;
  made.autotune = options.autotune != 0;
  if (options.new_sizes < 0 || options.new_sizes > 2) refuse("new_sizes");
  if (options.new_sizes != 0) made.new_sizes = options.new_sizes == 1 ? NewSizes::kWait : NewSizes::kServe;
  made.disabled_passes = plain_names(options.disabled_passes, options.disabled_pass_count);
  return made;
}

}  // namespace scoremod::fuzz
