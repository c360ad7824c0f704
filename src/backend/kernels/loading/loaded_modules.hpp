#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/cuda/kernel_module.hpp"
#include "backend/kernels/workspace/call_layout.hpp"
#include "backend/memory_space.hpp"

namespace scoremod::backend::kernels {

/// Modules of kernels in the context that was current when they were loaded, which the plans of all sizes share. Any
/// thread may ask.
class LoadedModules {
 public:
  /// `images` are what cuda::compile_kernels() made. Throws Error(kEnvironment) with the driver's text.
  explicit LoadedModules(const std::vector<std::string>& images);
  ~LoadedModules();
  LoadedModules(const LoadedModules&) = delete;
  LoadedModules& operator=(const LoadedModules&) = delete;

  /// The id of the context that they are loaded in.
  std::uint64_t context() const { return context_; }
  /// The kernel that a launch names, which may have the launch's shared memory from then on.
  cuda::KernelModule::Kernel kernel(const KernelLaunch& launch);

  /// Keeps memory that calls of a plan which is gone may still read: it is freed after the modules, whose unloading
  /// waits for these calls.
  void keep_until_unloaded(std::shared_ptr<const OwnedMemory> memory);
  /// Whether so much is kept that the next plan should have modules of its own.
  bool keeps_much() const;

 private:
  struct Found {
    cuda::KernelModule::Kernel kernel = nullptr;
    std::size_t shared_bytes = 0;  ///< that it may have
  };
  cuda::KernelModule::Kernel find(const std::string& name) const;

  std::uint64_t context_ = 0;
  std::vector<std::unique_ptr<cuda::KernelModule>> modules_;
  mutable std::mutex mutex_;  ///< guards the rest
  std::unordered_map<std::string, Found> found_;
  std::vector<std::shared_ptr<const OwnedMemory>> kept_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace scoremod::backend::kernels
