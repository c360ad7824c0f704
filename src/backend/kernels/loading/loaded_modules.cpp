#include "backend/kernels/loading/loaded_modules.hpp"

#include <utility>

#include "backend/cuda/context.hpp"
#include "backend/cuda/retirement.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

/// Dynamic shared memory that a kernel may have without asking (CUDA C++ Programming Guide, "Shared Memory 9.x").
constexpr std::size_t kFreeSharedBytes = std::size_t{48} * 1024;
/// States of tiles take a byte for each, so that a thousand sizes of some thousand tokens stay below this.
constexpr std::size_t kMuch = std::size_t{64} << 20;

}  // namespace

LoadedModules::LoadedModules(const std::vector<std::string>& images) : context_(cuda::current_context()) {
  for (const std::string& image : images) modules_.push_back(std::make_unique<cuda::KernelModule>(image));
}

LoadedModules::~LoadedModules() {
  modules_.clear();
  if (!kept_.empty()) cuda::retire([kept = std::move(kept_)]() mutable { kept.clear(); });
}

cuda::KernelModule::Kernel LoadedModules::kernel(const KernelLaunch& launch) {
  const std::scoped_lock lock(mutex_);
  Found& found = found_[launch.kernel];
  if (found.kernel == nullptr) found.kernel = find(launch.kernel);
  if (launch.shared_bytes > kFreeSharedBytes && launch.shared_bytes > found.shared_bytes) {
    cuda::KernelModule::allow_shared_memory(found.kernel, launch.shared_bytes);
    found.shared_bytes = launch.shared_bytes;
  }
  return found.kernel;
}

void LoadedModules::keep_until_unloaded(std::shared_ptr<const OwnedMemory> memory) {
  const std::scoped_lock lock(mutex_);
  kept_bytes_ += memory->bytes();
  kept_.push_back(std::move(memory));
}

bool LoadedModules::keeps_much() const {
  const std::scoped_lock lock(mutex_);
  return kept_bytes_ > kMuch;
}

cuda::KernelModule::Kernel LoadedModules::find(const std::string& name) const {
  for (const auto& module : modules_) {
    if (const cuda::KernelModule::Kernel kernel = module->find(name.c_str())) return kernel;
  }
  fail_bug("no module has the kernel ", name);
}

}  // namespace scoremod::backend::kernels
