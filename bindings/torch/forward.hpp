#pragma once

#include <span>

#include "prepared_call.hpp"
#include "python.hpp"

namespace scoremod::torch_binding {

/// Forwards of one kind: how their results are made.
struct Forward {
  Ref like_query;  ///< (query) -> an output of its shape and strides
  Ref output;      ///< (query, value, the caller's output or None, is_like_query) -> any other output
  Ref rows;        ///< (query, shape) -> (LSE, largest scores, largest magnitude), None of none; none without such
};

/// The tensors that a caller has.
struct GivenTensors {
  PyObject *q, *k, *v;
  std::span<PyObject* const> operands;
  PyObject* out;  ///< what the output may be written to; or None
};

Ref make_forward_type();

/// (output, LSE, largest scores, largest magnitude); None of those that nobody asked for. at: the object of the
/// PreparedCall at the tensors' sizes.
Ref run_forward(const Forward& forward, PyObject* at, const GivenTensors& given, const CallExtras& extras);

}  // namespace scoremod::torch_binding
