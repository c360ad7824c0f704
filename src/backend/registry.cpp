#include <algorithm>
#include <array>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "backend/reference/reference_backend.hpp"
#include "base/fail.hpp"
#ifdef SCOREMOD_HAS_CUDNN
#include "backend/cuda/operand_gradients_backend.hpp"
#include "backend/cudnn/cudnn_backend.hpp"
#include "backend/kernels/kernels_backend.hpp"
#include "backend/kernels/operand_kernels_backend.hpp"
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

}  // namespace

const Backend& find_backend(const std::string& name) {
  const Backend* found = engine_named(name);
  if (found != nullptr && !found->is_companion()) return *found;
  std::string names;
  for (const Backend* backend : backends()) {
    if (!backend->is_companion()) names += concat(names.empty() ? "" : ", ", backend->name());
  }
  fail_argument("expected the name of a backend (", names, "), found '", name, "'; leave it out to have one chosen");
}

const Backend& find_engine(const std::string& name) {
  if (const Backend* found = engine_named(name)) return *found;
  fail_argument("expected the name of an engine of this library, found '", name, "'");
}

}  // namespace scoremod::backend
