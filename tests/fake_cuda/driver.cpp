// The driver's functions that the library calls. CUresult and cudaError_t have the same numbers.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "fake_cuda/state.hpp"

namespace scoremod::test::fake_cuda {
namespace {

CUresult result(const Call& call) { return static_cast<CUresult>(call.code()); }

/// Functions of the driver work on the context that is current.
Context* current_context(Call& call) {
  if (!state().is_initialized) {
    call.refuse(CUDA_ERROR_NOT_INITIALIZED, "before the first function of the runtime");
    return nullptr;
  }
  if (!thread_state().contexts.empty()) {
    Context* const context = thread_state().contexts.back();
    if (!context->is_there) call.refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the device was reset");
    return context->is_there ? context : nullptr;
  }
  call.refuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no context");
  return nullptr;
}

Function* function_of(Call& call, CUfunction handle) {
  for (Module* module : state().modules) {
    for (Function& function : module->functions)
      if (&function == reinterpret_cast<Function*>(handle)) return &function;
  }
  call.refuse(CUDA_ERROR_INVALID_HANDLE, "expected a kernel of a loaded module, found another");
  return nullptr;
}

/// The driver's rules for a tensor map (CUDA Driver API, cuTensorMapEncodeTiled).
const char* objection_to_map(cuuint32_t rank, std::uint64_t address, const cuuint64_t* sizes, const cuuint64_t* strides,
                             const cuuint32_t* box, std::size_t element, CUtensorMapSwizzle swizzle) {
  constexpr cuuint64_t kMostSize = cuuint64_t{1} << 32, kMostStride = cuuint64_t{1} << 40;
  constexpr cuuint32_t kMostBox = 256, kSwizzled = 128;
  if (rank < 3 || rank > 5) return "rank";
  if (address % 16 != 0) return "address";
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || sizes[i] > kMostSize) return "size";
    if (box[i] == 0 || box[i] > kMostBox) return "box";
    if (i + 1 < rank && (strides[i] % 16 != 0 || strides[i] >= kMostStride)) return "stride";
  }
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * element > kSwizzled) return "box for the swizzle";
  return nullptr;
}

}  // namespace

extern "C" {

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = text_of(error);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(described(0, "driverVer"));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call("cuDeviceGet");
  if (!state().is_initialized)
    call.refuse(CUDA_ERROR_NOT_INITIALIZED, "before the first function of the runtime");
  else if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= state().devices.size())
    call.refuse(CUDA_ERROR_INVALID_DEVICE, "device ", ordinal);
  if (!call.fails()) *device = ordinal;
  return result(call);
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  Call call("cuDeviceGetName");
  const auto text = state().devices.at(static_cast<std::size_t>(device)).at("deviceName").get<std::string>();
  if (!call.fails()) name[text.copy(name, static_cast<std::size_t>(size) - 1)] = '\0';
  return result(call);
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  Call call("cuCtxGetCurrent", Call::Fails::kWhenNothingWorks);
  if (call.fails()) return result(call);
  // The library asks before it has called the runtime: that breaks no rule.
  if (!state().is_initialized) return CUDA_ERROR_NOT_INITIALIZED;
  const ThreadState& thread = thread_state();
  *context = thread.contexts.empty() ? nullptr : reinterpret_cast<CUcontext>(thread.contexts.back());
  return result(call);
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  Call call("cuCtxGetId", Call::Fails::kWhenNothingWorks);
  if (call.fails()) return result(call);
  const Context& of = *reinterpret_cast<Context*>(context);
  if (!of.is_there) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = of.id;
  return result(call);
}

CUresult cuCtxPushCurrent(CUcontext context) {
  Call call("cuCtxPushCurrent", Call::Fails::kWhenNothingWorks);
  if (!call.fails()) thread_state().contexts.push_back(reinterpret_cast<Context*>(context));
  return result(call);
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  Call call("cuCtxPopCurrent", Call::Fails::kWhenNothingWorks);
  auto& contexts = thread_state().contexts;
  if (contexts.empty()) {
    call.refuse(CUDA_ERROR_INVALID_CONTEXT, "the thread has no context");
    return result(call);
  }
  *context = reinterpret_cast<CUcontext>(contexts.back());
  contexts.pop_back();
  return result(call);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  Call call("cuModuleLoadData");
  call.must_not_meet_captures();
  const Context* const context = current_context(call);
  if (call.fails()) return result(call);
  try {
    auto loaded = std::make_unique<Module>();
    loaded->device = context->device;
    const std::int64_t shared = described(context->device, "maxSharedMemoryPerBlock");
    for (Kernel& kernel : kernels_of(image)) loaded->functions.push_back({loaded.get(), std::move(kernel), shared});
    state().modules.insert(loaded.get());
    *module = reinterpret_cast<CUmodule>(loaded.release());
  } catch (const std::runtime_error& error) {
    call.refuse(CUDA_ERROR_INVALID_IMAGE, error.what());
  }
  return result(call);
}

CUresult cuModuleUnload(CUmodule handle) {
  Call call("cuModuleUnload");
  call.must_not_meet_captures();
  if (!is_known(call, state().modules, handle, "a module")) return result(call);
  auto* const module = reinterpret_cast<Module*>(handle);
  if (const Context* context = current_context(call); context != nullptr && context->device != module->device)
    call.refuse(CUDA_ERROR_INVALID_CONTEXT, "a module of another context than the current one");
  state().modules.erase(module);
  delete module;
  return result(call);
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  Call call("cuModuleGetFunction");
  if (!is_known(call, state().modules, handle, "a module") || call.fails()) return result(call);
  auto& functions = reinterpret_cast<Module*>(handle)->functions;
  const auto found = std::ranges::find(functions, name, [](const Function& of) { return of.kernel.name; });
  if (found == functions.end()) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(&*found);
  return result(call);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  Call call("cuFuncSetAttribute");
  Function* const function = function_of(call, handle);
  if (function == nullptr) return result(call);
  const std::int64_t bytes = value + function->kernel.static_shared_bytes;
  const std::int64_t most = described(function->module->device, "maxSharedMemoryPerBlockOptin");
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    call.refuse(CUDA_ERROR_INVALID_VALUE, "attribute ", static_cast<int>(attribute));
  else if (value < 0 || bytes > most)
    call.refuse(CUDA_ERROR_INVALID_VALUE, function->kernel.name, ": ", bytes, " bytes of shared memory, at most ",
                most);
  if (!call.fails()) function->shared_limit = bytes;
  return result(call);
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream_handle,
                        void** parameters, void** extra) {
  Call call("cuLaunchKernel");
  Function* const function = function_of(call, handle);
  auto* const stream = reinterpret_cast<Stream*>(stream_handle);
  if (stream != nullptr && !is_known(call, state().streams, stream, "a stream")) return result(call);
  if (function == nullptr) return result(call);
  if (extra != nullptr)
    call.refuse(CUDA_ERROR_INVALID_VALUE, "parameters are given otherwise than the fake reads them");
  const int device = function->module->device;
  if (const Context* context = current_context(call); context != nullptr && context->device != device)
    call.refuse(CUDA_ERROR_INVALID_HANDLE, function->kernel.name, ": of another context than the current one");
  if (stream != nullptr && stream->device != device)
    call.refuse(CUDA_ERROR_INVALID_HANDLE, function->kernel.name, ": on a stream of another device");
  auto words =
      check_launch(call, *function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, parameters);
  if (stream != nullptr && stream->captured != nullptr && stream->broken)
    call.fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  if (call.fails()) return result(call);
  state().launches.push_back({function->kernel.name, device, function->kernel.parameter_bytes(),
                              thread_state().capture_mode == cudaStreamCaptureModeRelaxed});
  if (stream != nullptr && stream->captured != nullptr)
    stream->captured->work.push_back({function->kernel.name, const_cast<Module*>(function->module), std::move(words)});
  return result(call);
}

CUresult cuEventQuery(CUevent handle) {
  Call call("cuEventQuery");
  call.must_not_meet_captures();
  if (!is_known(call, state().events, handle, "an event")) return result(call);
  if (call.fails() || !std::exchange(reinterpret_cast<Event*>(handle)->is_ahead, false)) return result(call);
  return CUDA_ERROR_NOT_READY;
}

CUresult cuMemGetAddressRange(CUdeviceptr* begin, std::size_t* bytes, CUdeviceptr address) {
  Call call("cuMemGetAddressRange");
  if (call.fails()) return result(call);
  const auto found = state().allocations.upper_bound(address);
  if (state().allocation_of(address, 0) == nullptr) return CUDA_ERROR_NOT_FOUND;
  *begin = std::prev(found)->first;
  *bytes = std::prev(found)->second.size;
  return result(call);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Call call("cuTensorMapEncodeTiled");
  if (type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
    call.refuse(CUDA_ERROR_INVALID_VALUE, "a data type that the fake driver does not know");
  constexpr std::size_t kElement = 2;
  const auto address = reinterpret_cast<std::uint64_t>(data);
  // The library asks the driver whether a map can be had, and reads without one where it cannot.
  if (call.fails() || objection_to_map(rank, address, sizes, strides, box, kElement, swizzle) != nullptr)
    return call.fails() ? result(call) : CUDA_ERROR_INVALID_VALUE;
  std::size_t bytes = sizes[0] * kElement;
  for (cuuint32_t i = 0; i + 1 < rank; ++i) bytes += (sizes[i + 1] - 1) * strides[i];
  if (state().allocation_of(address, bytes) == nullptr)
    call.refuse(CUDA_ERROR_INVALID_VALUE, "the ", bytes, " bytes of the tensor are not all allocated");
  // A launch finds the address here, as in other parameters.
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &address, sizeof address);
  return result(call);
}

}  // extern "C"

}  // namespace scoremod::test::fake_cuda
