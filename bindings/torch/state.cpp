#include "state.hpp"

namespace scoremod::torch_binding {

StateFunctions& state_functions() {
  // Never destroyed: Python is gone before statics are.
  static auto& functions = *new StateFunctions;
  return functions;
}

Ref state() {
  const StateFunctions& ask = state_functions();
  static PyObject* const current_level = checked(PyUnicode_InternFromString("_current_level")).release();
  if (is_true(call(ask.any_autocast)) || integer(call(ask.count_modes).get()) != 0 ||
      integer(call(ask.count_function_modes).get()) != 0)
    return none();
  if (integer(checked(PyObject_GetAttr(ask.forward_ad.get(), current_level)).get()) >= 0) return none();
  const Ref dtype = call(ask.default_dtype), gradients = call(ask.is_grad_enabled),
            deterministic = call(ask.is_deterministic), threads = call(ask.count_threads),
            settings = call(ask.settings);
  return checked(PyTuple_Pack(5, dtype.get(), gradients.get(), deterministic.get(), threads.get(), settings.get()));
}

}  // namespace scoremod::torch_binding
