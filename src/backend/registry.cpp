#include <array>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "backend/reference/reference_backend.hpp"
#include "base/fail.hpp"

namespace scoremod::backend {

std::span<const Backend* const> backends() {
  static const std::array kBackends{
      &cpu_backend(),
      &reference_backend(),
  };
  return kBackends;
}

const Backend& find_backend(const std::string& name) {
  std::string names;
  for (const Backend* backend : backends()) {
    if (name == backend->name()) return *backend;
    names += concat(names.empty() ? "" : ", ", backend->name());
  }
  fail_argument("expected the name of a backend (", names, "), found '", name,
                "'; leave it empty for the first that fits");
}

}  // namespace scoremod::backend
