// Asks a device which CUDA calls disturb, or wait for, other threads' work on it: the facts behind
// src/backend/cuda/device/own_stream.hpp. nvcc -arch=sm_90 -o capture_probe capture_probe.cu -lcuda -lcublas -lcudnn &&
// ./capture_probe. For each call it reports whether the call succeeds while another thread captures graphs, and how
// many of these captures it breaks. It also reports how long the call takes while a kernel of 200 ms runs on a stream
// of another caller.
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

__global__ void spin(long long nanoseconds) {
  long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - start < nanoseconds);
}
__global__ void touch(float* x) { *x += 1; }

// Spins for as many nanoseconds as its argument says.
const char kPtx[] = R"(.version 7.8
.target sm_80
.address_size 64
.visible .entry probe(.param .u64 duration) {
  .reg .u64 %start, %now, %wanted;
  .reg .pred %again;
  ld.param.u64 %wanted, [duration];
  mov.u64 %start, %globaltimer;
loop:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %start;
  setp.lt.u64 %again, %now, %wanted;
  @%again bra loop;
  ret;
}
)";

CUresult launch(CUfunction function, cudaStream_t stream, long long nanoseconds) {
  void* parameters[] = {&nanoseconds};
  return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

struct Captures {
  long tried = 0, broken = 0;
};

// Captures graphs until told to stop.
class Capturer {
 public:
  Capturer(unsigned stream_flags, cudaStreamCaptureMode mode)
      : thread_([=, this] { run(stream_flags, mode); }) {}
  ~Capturer() { stop_ = true; thread_.join(); }
  Captures now() const { return {tried_, broken_}; }

 private:
  void run(unsigned flags, cudaStreamCaptureMode mode) {
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, flags);
    float* data;
    cudaMalloc(&data, 4);
    while (!stop_) {
      bool good = cudaStreamBeginCapture(stream, mode) == cudaSuccess;
      for (int i = 0; i < 10; ++i) {
        touch<<<1, 1, 0, stream>>>(data);
        good = cudaGetLastError() == cudaSuccess && good;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      cudaGraph_t graph = nullptr;
      good = cudaStreamEndCapture(stream, &graph) == cudaSuccess && good;
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();
      ++tried_;
      if (!good) ++broken_;
    }
    cudaStreamDestroy(stream);
  }
  std::atomic<bool> stop_ = false;
  std::atomic<long> tried_ = 0, broken_ = 0;
  std::thread thread_;
};

struct Call {
  std::string name;
  std::function<void()> before;       // not measured, made without captures beside
  std::function<std::string()> call;  // empty where it succeeds
};

std::string text(cudaError_t status) { cudaGetLastError(); return status == cudaSuccess ? "" : cudaGetErrorName(status); }
std::string text(CUresult status) {
  const char* name = nullptr;
  if (status != CUDA_SUCCESS) cuGetErrorName(status, &name);
  return status == CUDA_SUCCESS ? "" : name ? name : "?";
}

double milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Call> calls() {
  static cudaStream_t own;
  cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
  static void* memory = nullptr;
  static cudaMemPool_t pool;
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPoolCreate(&pool, &props);
  static std::vector<char> host(1 << 20);
  static CUmodule module = nullptr;
  static CUlibrary library = nullptr;
  static CUfunction function = nullptr;
  static cudaStream_t made = nullptr;
  static cudaEvent_t event = nullptr;
  static cublasHandle_t blas = nullptr;
  static cudnnHandle_t dnn = nullptr;
  static void* fixed = nullptr;
  cudaMalloc(&fixed, 1 << 20);
  const auto nothing = [] {};
  std::vector<Call> all;
  const auto add = [&](const char* name, std::function<void()> before, std::function<std::string()> call) {
    all.push_back({name, std::move(before), std::move(call)});
  };
  add("cudaMalloc 1 MiB", nothing, [] { memory = nullptr; return text(cudaMalloc(&memory, 1 << 20)); });
  add("cudaFree 1 MiB", nothing, [] { if (!memory) return std::string("none"); auto t = text(cudaFree(memory)); memory = nullptr; return t; });
  add("cudaMalloc 256 MiB", nothing, [] { memory = nullptr; return text(cudaMalloc(&memory, 256 << 20)); });
  add("cudaFree 256 MiB", nothing, [] { if (!memory) return std::string("none"); auto t = text(cudaFree(memory)); memory = nullptr; return t; });
  add("cudaMallocFromPoolAsync", nothing, [] { memory = nullptr; return text(cudaMallocFromPoolAsync(&memory, 1 << 20, pool, own)); });
  add("cudaFreeAsync + sync of own stream", nothing, [] {
    if (!memory) return std::string("none"); auto t = text(cudaFreeAsync(memory, own)); memory = nullptr;
    return t.empty() ? text(cudaStreamSynchronize(own)) : t; });
  add("cudaMemPoolTrimTo 0", nothing, [] { return text(cudaMemPoolTrimTo(pool, 0)); });
  add("cudaMemcpyAsync in + sync, own stream", nothing, [] {
    auto t = text(cudaMemcpyAsync(fixed, host.data(), host.size(), cudaMemcpyHostToDevice, own));
    return t.empty() ? text(cudaStreamSynchronize(own)) : t; });
  add("cudaMemcpyAsync out + sync, own stream", nothing, [] {
    auto t = text(cudaMemcpyAsync(host.data(), fixed, host.size(), cudaMemcpyDeviceToHost, own));
    return t.empty() ? text(cudaStreamSynchronize(own)) : t; });
  add("cudaMemcpyAsync out 256 B + sync, own stream", nothing, [] {
    auto t = text(cudaMemcpyAsync(host.data(), fixed, 256, cudaMemcpyDeviceToHost, own));
    return t.empty() ? text(cudaStreamSynchronize(own)) : t; });
  add("cudaMemcpy in (legacy stream)", nothing, [] { return text(cudaMemcpy(fixed, host.data(), host.size(), cudaMemcpyHostToDevice)); });
  add("cudaDeviceSynchronize", nothing, [] { return text(cudaDeviceSynchronize()); });
  add("cudaStreamSynchronize(0) (legacy stream)", nothing, [] { return text(cudaStreamSynchronize(nullptr)); });
  add("kernel on the legacy stream", nothing, [] { touch<<<1, 1>>>(static_cast<float*>(fixed)); return text(cudaGetLastError()); });
  add("kernel on own stream + sync", nothing, [] { touch<<<1, 1, 0, own>>>(static_cast<float*>(fixed)); 
    auto t = text(cudaGetLastError()); return t.empty() ? text(cudaStreamSynchronize(own)) : t; });
  add("cudaStreamCreateWithFlags", nothing, [] { made = nullptr; return text(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking)); });
  add("cudaStreamDestroy", nothing, [] { if (!made) return std::string("none"); auto t = text(cudaStreamDestroy(made)); made = nullptr; return t; });
  add("cudaEventCreate", nothing, [] { event = nullptr; return text(cudaEventCreate(&event)); });
  add("cudaEventRecord on own stream", nothing, [] { return text(cudaEventRecord(event, own)); });
  add("cudaEventQuery", nothing, [] { return text(cudaEventQuery(event)); });
  add("cudaEventSynchronize", nothing, [] { return text(cudaEventSynchronize(event)); });
  add("cudaEventDestroy", nothing, [] { if (!event) return std::string("none"); auto t = text(cudaEventDestroy(event)); event = nullptr; return t; });
  add("cuModuleLoadData", nothing, [] { module = nullptr; return text(cuModuleLoadData(&module, kPtx)); });
  add("cuModuleGetFunction", nothing, [] { return text(cuModuleGetFunction(&function, module, "probe")); });
  add("cuFuncSetAttribute", nothing, [] { return text(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024)); });
  add("cuLaunchKernel of it, own stream", nothing, [] { return text(launch(function, own, 0)); });
  add("cuModuleUnload", nothing, [] { if (!module) return std::string("none"); auto t = text(cuModuleUnload(module)); module = nullptr; return t; });
  add("cuLibraryLoadData", nothing, [] { library = nullptr; return text(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0)); });
  static CUkernel kernel = nullptr;
  add("cuLibraryGetKernel", nothing, [] { return text(cuLibraryGetKernel(&kernel, library, "probe")); });
  add("cuKernelSetAttribute", nothing, [] { return text(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024, kernel, 0)); });
  add("cuKernelGetFunction", nothing, [] { return text(cuKernelGetFunction(&function, kernel)); });
  add("cuLaunchKernel of the library's, own stream", nothing, [] { return text(launch(function, own, 0)); });
  add("cudaStreamSynchronize(own)", nothing, [] { return text(cudaStreamSynchronize(own)); });
  add("cuLibraryUnload", nothing, [] { if (!library) return std::string("none"); auto t = text(cuLibraryUnload(library)); library = nullptr; return t; });
  add("cudaHostAlloc", nothing, [] { memory = nullptr; return text(cudaHostAlloc(&memory, 1 << 16, 0)); });
  add("cudaFreeHost", nothing, [] { if (!memory) return std::string("none"); auto t = text(cudaFreeHost(memory)); memory = nullptr; return t; });
  add("cudaFree(null)", nothing, [] { return text(cudaFree(nullptr)); });
  add("cudaPointerGetAttributes", nothing, [] { cudaPointerAttributes a; return text(cudaPointerGetAttributes(&a, fixed)); });
  add("cublasCreate", nothing, [] { blas = nullptr; return std::string(cublasCreate(&blas) == 0 ? "" : "failed"); });
  add("cublasDestroy", nothing, [] { const bool good = blas && cublasDestroy(blas) == 0; blas = nullptr; return std::string(good ? "" : "failed"); });
  add("cudnnCreate", nothing, [] { dnn = nullptr; return std::string(cudnnCreate(&dnn) == 0 ? "" : "failed"); });
  add("cudnnDestroy", nothing, [] { const bool good = dnn && cudnnDestroy(dnn) == 0; dnn = nullptr; return std::string(good ? "" : "failed"); });
  return all;
}

void report(const char* title, const std::vector<Call>& all, unsigned flags, cudaStreamCaptureMode mode, bool relaxed) {
  std::printf("%s\n", title);
  Capturer capturer(flags, mode);
  while (capturer.now().tried < 10) std::this_thread::yield();
  cudaStreamCaptureMode own_mode = relaxed ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
  cudaThreadExchangeStreamCaptureMode(&own_mode);
  for (const Call& each : all) {
    const long before = capturer.now().broken;
    const std::string status = each.call();
    const long tried = capturer.now().tried;
    while (capturer.now().tried < tried + 3) std::this_thread::yield();
    const long broken = capturer.now().broken - before;
    if (!status.empty() || broken > 0) std::printf("  %-44s %s, captures broken: %ld\n", each.name.c_str(), status.empty() ? "succeeds" : status.c_str(), broken);
  }
  cudaThreadExchangeStreamCaptureMode(&own_mode);
}

// The probe kernel, loaded as a module or as a library.
struct Image {
  explicit Image(bool as_library) {
    if (as_library) {
      CUkernel kernel = nullptr;
      cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0);
      cuLibraryGetKernel(&kernel, library, "probe");
      cuKernelGetFunction(&function, kernel);
    } else {
      cuModuleLoadData(&module, kPtx);
      cuModuleGetFunction(&function, module, "probe");
    }
  }
  CUresult unload() const { return library != nullptr ? cuLibraryUnload(library) : cuModuleUnload(module); }

  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
};

// Shows how unloading affects a kernel of the image that still runs, and other threads' launches.
void report_unloading(cudaStream_t busy) {
  cudaStream_t other;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  float* data;
  cudaMalloc(&data, 4);
  for (const bool as_library : {false, true}) {
    const Image image(as_library);
    cudaDeviceSynchronize();
    std::string status = text(launch(image.function, busy, 300'000'000));
    double unload = 0, longest = 0;
    std::atomic<bool> done = false;
    std::thread unloader([&] {
      unload = milliseconds([&] { status += text(image.unload()); });
      done = true;
    });
    while (!done) longest = std::max(longest, milliseconds([&] { touch<<<1, 1, 0, other>>>(data); cudaStreamSynchronize(other); }));
    unloader.join();
    status += text(cudaStreamSynchronize(busy));
    std::printf("%s while its kernel of 300 ms runs: %.1f ms %s; longest launch and wait of another thread meanwhile: %.1f ms\n",
                as_library ? "cuLibraryUnload" : "cuModuleUnload", unload, status.c_str(), longest);
  }
  for (const char* what : {"cuModuleLoadData", "cudaFree", "cudnnCreate"}) {
    void* memory = nullptr;
    cudaMalloc(&memory, 1 << 20);
    cudaDeviceSynchronize();
    spin<<<1, 1, 0, busy>>>(300'000'000);
    double longest = 0, took = 0;
    std::atomic<bool> done = false;
    std::thread caller([&] {
      took = milliseconds([&] {
        CUmodule module;
        cudnnHandle_t handle;
        if (what[1] == 'u' && what[2] == 'M') cuModuleLoadData(&module, kPtx);
        else if (what[2] == 'd' && what[3] == 'a') cudaFree(memory);
        else cudnnCreate(&handle);
      });
      done = true;
    });
    while (!done) longest = std::max(longest, milliseconds([&] { touch<<<1, 1, 0, other>>>(data); cudaStreamSynchronize(other); }));
    caller.join();
    std::printf("%s while a kernel of 300 ms runs: %.1f ms; longest launch and wait of another thread meanwhile: %.1f ms\n", what, took, longest);
  }
}

void report_costs() {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const auto ns = [](const char* name, const std::function<void()>& body) {
    constexpr int kTimes = 10000;
    const double ms = milliseconds([&] { for (int i = 0; i < kTimes; ++i) body(); });
    std::printf("%s: %.0f ns\n", name, ms * 1e6 / kTimes);
  };
  ns("cudaStreamIsCapturing", [&] { cudaStreamCaptureStatus status; cudaStreamIsCapturing(stream, &status); });
  ns("cudaThreadExchangeStreamCaptureMode twice", [&] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode); cudaThreadExchangeStreamCaptureMode(&mode); });
  cudaMemPool_t pool;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  ns("cudaMalloc and cudaFree of 64 KiB", [&] { void* p; cudaMalloc(&p, 1 << 16); cudaFree(p); });
  ns("the same from a pool of the stream, and a sync", [&] {
    void* p; cudaMallocAsync(&p, 1 << 16, stream); cudaFreeAsync(p, stream); cudaStreamSynchronize(stream); });
  ns("the same from a pool of the stream", [&] { void* p; cudaMallocAsync(&p, 1 << 16, stream); cudaFreeAsync(p, stream); });
}

// Whether a graph runs after the image of its kernel was unloaded. Last: it may break the context.
void report_graph_after_unload() {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (const bool as_library : {false, true}) {
    const Image image(as_library);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    launch(image.function, stream, 1000);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphLaunch(exec, stream);
    cudaStreamSynchronize(stream);
    image.unload();
    std::string status = text(cudaGraphLaunch(exec, stream));
    status += " " + text(cudaStreamSynchronize(stream));
    std::printf("a graph after %s: '%s'\n", as_library ? "cuLibraryUnload" : "cuModuleUnload", status.c_str());
  }
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  cudaFree(nullptr);
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, 0);
  std::printf("%s, driver API %d, runtime %d, cuDNN %zu\n", properties.name, driver, runtime, cudnnGetVersion());
  const auto all = calls();
  for (const Call& each : all) {
    const std::string status = each.call();  // one-time loading
    if (!status.empty()) std::printf("alone, first: %s: %s\n", each.name.c_str(), status.c_str());
  }
  cudaStream_t busy;
  cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking);
  std::printf("while a kernel of 200 ms runs on another stream, calls of over 20 ms:\n");
  for (const Call& each : all) {
    cudaDeviceSynchronize();
    spin<<<1, 1, 0, busy>>>(200'000'000);
    std::string status;
    const double took = milliseconds([&] { status = each.call(); });
    if (took > 20 || !status.empty()) std::printf("  %-44s %.1f ms %s\n", each.name.c_str(), took, status.c_str());
  }
  cudaDeviceSynchronize();
  report_unloading(busy);
  report_costs();
  report("captures on a non-blocking stream, global mode; caller relaxed:", all, cudaStreamNonBlocking, cudaStreamCaptureModeGlobal, true);
  report("captures on a blocking stream, global mode; caller relaxed:", all, cudaStreamDefault, cudaStreamCaptureModeGlobal, true);
  report("captures on a non-blocking stream, thread-local mode; caller not relaxed:", all, cudaStreamNonBlocking, cudaStreamCaptureModeThreadLocal, false);
  report("captures on a non-blocking stream, relaxed mode; caller not relaxed:", all, cudaStreamNonBlocking, cudaStreamCaptureModeRelaxed, false);
  report("captures on a non-blocking stream, global mode; caller not relaxed:", all, cudaStreamNonBlocking, cudaStreamCaptureModeGlobal, false);
  report_graph_after_unload();
}
