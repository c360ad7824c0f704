#include "backend/cuda/modules/kernel_cache.hpp"

#include <memory>

#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "plans/plan_cache.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"

namespace scoremod::backend::cuda {
namespace {

/// To be raised when compile_kernels() compiles the same source to something else.
constexpr int kKernelRevision = 1;

/// NVRTC comes with the runtime, and loading it takes longer than loading a kernel: its version is not asked for.
int runtime_version() {
  int version = 0;
  check_runtime(SCOREMOD_CUDART(cudaRuntimeGetVersion)(&version), "cudaRuntimeGetVersion");
  return version;
}

Bytes key_of(const std::string& source, int compute_capability, Instructions instructions) {
  CanonicalWriter writer;
  writer.text(instructions == Instructions::kCommon ? "kernels" : "kernels of an architecture");
  writer.integer(kKernelRevision).integer(runtime_version()).integer(compute_capability).text(source);
  return writer.written();
}

plans::PlanOrRefusal<std::string> load_or_compile(const std::string& source, int compute_capability,
                                                  Instructions instructions, const Bytes& key) {
  const std::shared_ptr<plans::PlanStore> store = plans::plan_store();
  plans::CountedWork load(plans::WorkKind::kLoad);
  if (const auto stored = store->load(plans::RecordKind::kKernels, key)) {
    const auto* text = reinterpret_cast<const char*>(stored->data());
    return {std::make_shared<const std::string>(text, stored->size()), stored->size(), {}};
  }
  load.forget();
  const plans::CountedWork build(plans::WorkKind::kBuild);
  auto image = std::make_shared<const std::string>(compile_kernels(source, compute_capability, nullptr, instructions));
  const auto bytes = std::as_bytes(std::span(*image));
  store->save({plans::RecordKind::kKernels,
               concat("cuda ", runtime_version()),
               concat("sm_", compute_capability),
               concat("kernels of ", source.size(), " bytes of source"),
               key,
               {bytes.begin(), bytes.end()}});
  const std::size_t size = image->size();
  return {std::move(image), size, {}};
}

}  // namespace

std::string cached_kernels(const std::string& source, Instructions instructions) {
  // Never destroyed: threads may compile while the process ends.
  static auto& cache = *new plans::PlanCache<std::string>("cuda");
  const int compute_capability = current_compute_capability();
  const Bytes key = key_of(source, compute_capability, instructions);
  return *cache.get(key, [&] { return load_or_compile(source, compute_capability, instructions, key); }).plan;
}

}  // namespace scoremod::backend::cuda
