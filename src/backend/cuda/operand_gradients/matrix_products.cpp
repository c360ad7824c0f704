#include "backend/cuda/operand_gradients/matrix_products.hpp"

#include "backend/cuda/device/library.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/device/thread_things.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

// cuBLAS's interface as far as it is used here, the same in CUDA 12 and 13. Declared here, because its header is not in
// the packages that the CUDA headers come from. Values as in cublas_api.h and library_types.h.
using Status = int;
constexpr Status kSuccess = 0;
constexpr int kNotTransposed = 0, kTransposed = 1;
constexpr int kReal32 = 0, kReal16 = 2, kBrain16 = 14;
constexpr int kCompute32 = 68;
constexpr int kDefaultAlgorithm = -1;

struct Blas {
  Status (*create)(void** handle);
  Status (*set_stream)(void* handle, void* stream);
  Status (*set_workspace)(void* handle, void* workspace, std::size_t bytes);
  Status (*gemm)(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha, const void* a,
                 int a_type, int lda, long long stride_a, const void* b, int b_type, int ldb, long long stride_b,
                 const void* beta, void* c, int c_type, int ldc, long long stride_c, int count, int compute,
                 int algorithm);
  const char* (*text)(Status);
};

template <class Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(symbol_of(cublas_library(), name));
}

const Blas& blas() {
  static const Blas functions = [] {
    if (cublas_library().handle == nullptr) {
      fail_environment("no cuBLAS, which operand gradients need: ", cublas_library().reason);
    }
    Blas found{};
    find(found.create, "cublasCreate_v2");
    find(found.set_stream, "cublasSetStream_v2");
    find(found.set_workspace, "cublasSetWorkspace_v2");
    find(found.gemm, "cublasGemmStridedBatchedEx");
    find(found.text, "cublasGetStatusString");
    return found;
  }();
  return functions;
}

void check(Status status, const char* call) {
  if (status != kSuccess) fail_environment(call, ": ", blas().text(status));
}

struct BlasHandle {
  static void* make() {
    const RelaxedCapture relaxed;
    void* handle = nullptr;
    check(blas().create(&handle), "cublasCreate");
    return handle;
  }
};

int data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return kReal32;
    case DType::kF16: return kReal16;
    case DType::kBF16: return kBrain16;
    default: fail_bug("no product of this dtype");
  }
}

}  // namespace

BlasStream::BlasStream(void* stream, void* workspace, std::size_t workspace_bytes)
    : handle_(thing_of_thread<BlasHandle>()) {
  // In this order: a new stream takes the workspace away.
  check(blas().set_stream(handle_, stream), "cublasSetStream");
  check(blas().set_workspace(handle_, workspace, workspace_bytes), "cublasSetWorkspace");
}

void BlasStream::multiply(const RowProducts& p) const {
  const float none = 0;
  const int type = data_type(p.dtype);
  // cuBLAS sees column-major matrices: out^T = b a^T, where b's rows are the columns of a matrix to be transposed.
  check(blas().gemm(handle_, kTransposed, kNotTransposed, static_cast<int>(p.columns), static_cast<int>(p.rows),
                    static_cast<int>(p.depth), &p.factor, p.b, type, static_cast<int>(p.b_row), p.b_plane, p.a, type,
                    static_cast<int>(p.a_row), p.a_plane, &none, p.out, kReal32, static_cast<int>(p.out_row),
                    p.out_plane, static_cast<int>(p.planes), kCompute32, kDefaultAlgorithm),
        "cublasGemmStridedBatchedEx");
}

}  // namespace scoremod::backend::cuda
