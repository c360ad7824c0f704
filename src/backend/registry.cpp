#include <array>

#include "backend/backend.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "backend/form_choices.hpp"
#include "backend/plan_ahead.hpp"
#include "backend/reference/reference_backend.hpp"
#include "base/fail.hpp"
#ifdef SCOREMOD_HAS_CUDNN
#include "backend/cudnn/build_ahead.hpp"
#include "backend/cudnn/cudnn_backend.hpp"
#include "backend/cudnn/explain_forms.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/handle.hpp"
#endif

namespace scoremod::backend {

std::span<const Backend* const> backends() {
  static const std::array kBackends{
#ifdef SCOREMOD_HAS_CUDNN
      &cudnn_backend(),
#endif
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

#ifdef SCOREMOD_HAS_CUDNN
std::vector<AheadPlan> plan_ahead(const compiler::CompiledProblem& problem, std::string_view device_properties) {
  return cudnn::build_ahead(problem, device_properties);
}

std::string device_properties_here() { return cudnn::device_properties(cudnn::builder_handle()).json; }

std::vector<DirectionForms> form_choices(const compiler::CompiledProblem& problem,
                                         const std::optional<std::string>& device_properties) {
  return cudnn::explain_forms(problem, device_properties);
}
#else
std::vector<AheadPlan> plan_ahead(const compiler::CompiledProblem&, std::string_view) {
  fail_unsupported("this scoremod was built without the cuDNN backend, the only one that plans ahead");
}

std::vector<DirectionForms> form_choices(const compiler::CompiledProblem&, const std::optional<std::string>&) {
  fail_unsupported("this scoremod was built without the cuDNN backend, the only one that has forms to choose from");
}

std::string device_properties_here() { fail_unsupported("this scoremod was built without the cuDNN backend"); }
#endif

}  // namespace scoremod::backend
