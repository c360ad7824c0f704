#pragma once

#include <cstddef>

namespace scoremod::backend::kernels::device {

using std::size_t;
#include "backend/kernels/hopper/storage.cuh"
#include "backend/kernels/shared/storage.cuh"
#include "backend/kernels/split_kv/storage.cuh"

}  // namespace scoremod::backend::kernels::device
