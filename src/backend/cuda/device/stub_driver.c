/* A CUDA driver for machines without one: it has every entry point, finds no device, and loads nothing. Behind it,
 * cuDNN runs its heuristics, support checks and code generation for a device whose properties it is given, which is all
 * that building a plan takes. Every other entry point is in the list that cmake/StubDriver.cmake makes of cuda.h;
 * each of those says that there is no device. See load_stub_driver.hpp for how it is kept from hiding a real
 * driver. */
#include <cuda.h>
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* The handle of every successful load. Nothing can be launched, so nothing ever looks at it. */
static char loaded;

static CUresult store(void** place) {
  if (place == NULL) return CUDA_ERROR_INVALID_VALUE;
  *place = &loaded;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuInit(unsigned int flags) {
  (void)flags;
  return CUDA_ERROR_NO_DEVICE;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
  *count = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) {
  if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
  *name = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : error == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : NULL;
  return *name == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
  if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
  *text = error == CUDA_SUCCESS           ? "no error"
          : error == CUDA_ERROR_NO_DEVICE ? "scoremod's stub CUDA driver has no device"
                                          : NULL;
  return *text == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
  (void)path;
  return store((void**)module);
}

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  (void)image;
  return store((void**)module);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                                    void** values) {
  (void)image, (void)count, (void)options, (void)values;
  return store((void**)module);
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  (void)image;
  return store((void**)module);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  (void)module;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  (void)module, (void)name;
  return store((void**)function);
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jit_options, void** jit_values,
                                   unsigned int jit_count, CUlibraryOption* options, void** values,
                                   unsigned int count) {
  (void)code, (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  return store((void**)library);
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* jit_options,
                                       void** jit_values, unsigned int jit_count, CUlibraryOption* options,
                                       void** values, unsigned int count) {
  (void)path, (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
  return store((void**)library);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  (void)library;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  (void)library, (void)name;
  return store((void**)kernel);
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  (void)library;
  return store((void**)module);
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  (void)kernel;
  return store((void**)function);
}

/* The header renames this to cuGetProcAddress_v2. */
CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** address, int cuda_version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* result) {
  (void)cuda_version, (void)flags;
  if (symbol == NULL || address == NULL) return CUDA_ERROR_INVALID_VALUE;
  *address = NULL;
  Dl_info self;
  if (dladdr(&loaded, &self) != 0) {
    /* Open already: this gives its handle without loading it again. */
    void* handle = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (handle != NULL) {
      *address = dlsym(handle, symbol);
      /* An entry point of a later CUDA than the one this was built with: another that says that there is no device. */
      if (*address == NULL && strncmp(symbol, "cu", 2) == 0) *address = dlsym(handle, "cuCtxSynchronize");
      dlclose(handle);
    }
  }
  if (result != NULL) *result = *address != NULL ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *address != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
