#include <algorithm>
#include <array>
#include <string_view>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "backend/left_out.hpp"
#include "backend/reference/reference_backend.hpp"
#include "base/fail.hpp"
#ifdef SCOREMOD_HAS_CUDA
#include "backend/cuda/operand_gradients/operand_gradients_backend.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#endif
#ifdef SCOREMOD_HAS_CUDNN
#include "backend/cudnn/cudnn_backend.hpp"
#endif
#ifdef SCOREMOD_EXTRA_BACKEND_HEADER
#include SCOREMOD_EXTRA_BACKEND_HEADER
#endif

namespace scoremod::backend {

// One line for each backend; its folder is all else that it needs.
std::span<const Backend* const> backends() {
  static const std::array kBackends{
#ifdef SCOREMOD_HAS_CUDNN
      &cudnn_backend(),
#endif
#ifdef SCOREMOD_HAS_CUDA
      &kernels_backend(),
      &operand_kernels_backend(),
      &operand_gradients_backend(),
#endif
#ifdef SCOREMOD_EXTRA_BACKEND
      &SCOREMOD_EXTRA_BACKEND(),
#endif
      &cpu_backend(),
      &reference_backend(),
  };
  return kBackends;
}

namespace {

/// Null where none has this name.
const Backend* engine_named(const std::string& name) {
  const auto found = std::ranges::find_if(backends(), [&](const Backend* engine) { return name == engine->name(); });
  return found == backends().end() ? nullptr : *found;
}

/// A backend that builds may leave out, and the switch of CMake that builds it.
struct OptionalBackend {
  std::string_view name, build_switch;
};
constexpr std::array kOptionalBackends{OptionalBackend{"cudnn", "SCOREMOD_CUDNN"},
                                       OptionalBackend{"kernels", "SCOREMOD_CUDA"}};

const OptionalBackend* left_out(std::string_view name) {
  const auto* found =
      std::ranges::find_if(kOptionalBackends, [&](const OptionalBackend& backend) { return name == backend.name; });
  return found == kOptionalBackends.end() || engine_named(std::string(name)) != nullptr ? nullptr : found;
}

}  // namespace

bool is_left_out(const std::string& name) { return left_out(name) != nullptr; }

const Backend& find_backend(const std::string& name) {
  const Backend* found = engine_named(name);
  if (found != nullptr && !found->is_companion()) return *found;
  std::string names;
  for (const Backend* backend : backends()) {
    if (!backend->is_companion()) names += concat(names.empty() ? "" : ", ", backend->name());
  }
  if (const OptionalBackend* missing = left_out(name)) {
    fail_unsupported("this build of scoremod has no backend '", name, "', only ", names, "; build it with CMake's ",
                     missing->build_switch, "=ON, or name none to have one chosen");
  }
  fail_argument("expected the name of a backend (", names, "), found '", name, "'; leave it out to have one chosen");
}

const Backend& find_engine(const std::string& name) {
  if (const Backend* found = engine_named(name)) return *found;
  fail_argument("expected the name of a backend of this library, found '", name, "'");
}

}  // namespace scoremod::backend
