#include "tensors.hpp"

namespace scoremod::torch_binding {

Torch& torch() {
  // Never destroyed: Python is gone before statics are.
  static auto& functions = *new Torch;
  return functions;
}

void* address_of(PyObject* tensor) { return pointer(call(torch().data_ptr, tensor).get()); }

std::int64_t bytes_from_beginning(PyObject* tensor, std::int64_t itemsize) {
  const Ref storage = call(torch().untyped_storage, tensor);
  const std::int64_t bytes = integer(call(torch().storage_nbytes, storage.get()).get());
  return bytes - integer(call(torch().storage_offset, tensor).get()) * itemsize;
}

}  // namespace scoremod::torch_binding
