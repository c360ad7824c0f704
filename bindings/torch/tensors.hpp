#pragma once

#include <cstdint>

#include "python.hpp"

namespace scoremod::torch_binding {

/// PyTorch's own functions that a call asks. They are Python's objects, so that the binding is of no version of
/// PyTorch.
struct Torch {
  Ref data_ptr, untyped_storage, storage_nbytes, storage_offset;  ///< methods of torch.Tensor and its storage
  Ref is_capturing;                                               ///< whether the current stream captures a graph
};

/// Set once, as Python imports the binding.
Torch& torch();

/// The address of a tensor's first element.
void* address_of(PyObject* tensor);

/// The bytes of a tensor's storage from its first element on; below 0 where the storage was made smaller.
std::int64_t bytes_from_beginning(PyObject* tensor, std::int64_t itemsize);

}  // namespace scoremod::torch_binding
