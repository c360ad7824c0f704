#include "backend/cuda/modules/kernel_module.hpp"

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/library.hpp"
#include "backend/cuda/device/retirement.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

void launch_kernel(KernelModule::Kernel kernel, const Grid& grid, int threads, std::size_t shared_bytes,
                   const void** parameters, void* stream) {
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  check_driver(
      SCOREMOD_DRIVER(cuLaunchKernel)(static_cast<CUfunction>(kernel), static_cast<unsigned>(grid[0]),
                                      static_cast<unsigned>(grid[1]), static_cast<unsigned>(grid[2]),
                                      static_cast<unsigned>(threads), 1, 1, static_cast<unsigned>(shared_bytes),
                                      static_cast<CUstream>(stream), const_cast<void**>(parameters), nullptr),
      "cuLaunchKernel");
}

}  // namespace

KernelModule::KernelModule(const std::string& image) {
  if (!library().available) fail_environment(library().reason);
  const RelaxedCapture relaxed;
  // Makes the device's primary context current, which the driver's functions work on.
  check_runtime(SCOREMOD_CUDART(cudaFree)(nullptr), "cudaFree");
  const std::uint64_t context = current_context();
  CUmodule module = nullptr;
  check_driver(SCOREMOD_DRIVER(cuModuleLoadData)(&module, image.c_str()), "cuModuleLoadData");
  context_ = context;
  module_ = module;
}

KernelModule::~KernelModule() {
  retire([context = context_, module = static_cast<CUmodule>(module_)] {
    within(context, [module] { SCOREMOD_DRIVER(cuModuleUnload)(module); });
  });
}

KernelModule::Kernel KernelModule::kernel(const char* name) const {
  const Kernel found = find(name);
  if (found == nullptr) fail_bug("a module of generated kernels without ", name);
  return found;
}

KernelModule::Kernel KernelModule::find(const char* name) const {
  CUfunction function = nullptr;
  const CUresult result = SCOREMOD_DRIVER(cuModuleGetFunction)(&function, static_cast<CUmodule>(module_), name);
  if (result == CUDA_ERROR_NOT_FOUND) return nullptr;
  check_driver(result, "cuModuleGetFunction");
  return function;
}

void KernelModule::launch(Kernel kernel, const Grid& grid, int threads, const KernelArguments& arguments,
                          void* stream) {
  std::vector<const void*> pointers;
  for (const std::uint64_t& word : arguments.words()) pointers.push_back(&word);
  launch_kernel(kernel, grid, threads, 0, pointers.data(), stream);
}

void KernelModule::launch(Kernel kernel, const Grid& grid, int threads, std::size_t shared_bytes, const void* argument,
                          void* stream) {
  launch_kernel(kernel, grid, threads, shared_bytes, &argument, stream);
}

void KernelModule::allow_shared_memory(Kernel kernel, std::size_t bytes) {
  check_driver(
      SCOREMOD_DRIVER(cuFuncSetAttribute)(static_cast<CUfunction>(kernel),
                                          CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(bytes)),
      "cuFuncSetAttribute");
}

}  // namespace scoremod::backend::cuda
