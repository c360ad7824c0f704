#include "backend/kernels/loading/tensor_maps.hpp"

#include <array>
#include <cstring>

#include "backend/cuda/driver_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using problem::TensorRole;

constexpr std::int64_t kHalfBytes = 2;
/// Halves of a row that one copy brings: as many as are exchanged among themselves.
constexpr cuuint32_t kBoxDims = 64;

bool write_map(DType dtype, const problem::TensorShape& shape, const device::TensorArgument& tensor, CacheLines lines,
               std::byte (&to)[TensorMaps::kBytes]) {
  static_assert(sizeof(CUtensorMap) == TensorMaps::kBytes);
  // Rows that are the same memory are none that a map can have.
  if ((shape.sequence > 1 && tensor.row <= 0) || (shape.heads > 1 && tensor.head <= 0) ||
      (shape.batch > 1 && tensor.batch <= 0))
    return false;
  const auto size = [](std::int64_t of) { return static_cast<cuuint64_t>(of); };
  const std::array<cuuint64_t, 4> sizes{size(shape.dim), size(shape.sequence), size(shape.heads), size(shape.batch)};
  // The stride of a size of 1 may be anything, but what the driver takes.
  const auto stride = [](long long elements) {
    return static_cast<cuuint64_t>(elements <= 0 ? 16 : elements * kHalfBytes);
  };
  const std::array<cuuint64_t, 3> strides{stride(tensor.row), stride(tensor.head), stride(tensor.batch)};
  const std::array<cuuint32_t, 4> box{kBoxDims, static_cast<cuuint32_t>(kHopperBoxRows), 1, 1}, steps{1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult status = SCOREMOD_DRIVER(cuTensorMapEncodeTiled)(
      &map, dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, tensor.data,
      sizes.data(), strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      lines == CacheLines::k128Bytes ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) return false;
  std::memcpy(to, &map, sizeof(map));
  return true;
}

}  // namespace

std::array<MappedTensor, TensorMaps::kCount> mapped_tensors(const AttentionProblem& problem,
                                                            device::AttentionArguments& call) {
  const auto sized = [&](TensorRole role) { return problem::memory_shape_of(problem, role); };
  const problem::TensorShape copied{call.copied.batch == 0 ? 1 : problem.batch,
                                    call.copied.head == 0 ? 1 : problem.heads_q, problem.seq_q, problem.seq_kv};
  return {MappedTensor{&call.q, sized(TensorRole::kQ)},
          {&call.k, sized(TensorRole::kK)},
          {&call.v, sized(TensorRole::kV)},
          {&call.d_o, sized(TensorRole::kDO)},
          {&call.copied, copied}};
}

void write_tensor_maps(const AttentionProblem& problem, CacheLines lines, ArgumentBytes& arguments) {
  std::size_t number = 0;
  for (const MappedTensor& mapped : mapped_tensors(problem, arguments.call())) {
    auto& map = arguments.maps().bytes[number++];
    device::TensorArgument& tensor = *mapped.tensor;
    if (tensor.data == nullptr || tensor.aligned == 0) continue;
    tensor.aligned = write_map(problem.dtype, mapped.shape, tensor, lines, map) ? 1 : 0;
  }
}

}  // namespace scoremod::backend::kernels
