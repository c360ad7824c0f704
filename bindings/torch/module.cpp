#include <utility>

#include "forward.hpp"
#include "prepared_call.hpp"
#include "repeated.hpp"
#include "scratch.hpp"
#include "state.hpp"
#include "tensors.hpp"
#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

/// ask((data_ptr, untyped_storage, nbytes, storage_offset, is_capturing)): PyTorch's own functions.
PyObject* ask(PyObject*, PyObject* given) {
  return answer([&] {
    Torch& own = torch();
    Ref* const functions[] = {&own.data_ptr, &own.untyped_storage, &own.storage_nbytes, &own.storage_offset,
                              &own.is_capturing};
    Py_ssize_t at = 0;
    for (Ref* const function : functions) *function = Ref::to(item(given, at++));
    return none();
  });
}

/// ask_state((any_autocast, count_modes, count_function_modes, forward_ad, error, default_dtype, is_grad_enabled,
/// is_deterministic, count_threads, settings)).
PyObject* ask_state(PyObject*, PyObject* given) {
  return answer([&] {
    StateFunctions& own = state_functions();
    Ref* const functions[] = {&own.any_autocast,  &own.count_modes,   &own.count_function_modes, &own.forward_ad,
                              &own.error,         &own.default_dtype, &own.is_grad_enabled,      &own.is_deterministic,
                              &own.count_threads, &own.settings};
    Py_ssize_t at = 0;
    for (Ref* const function : functions) *function = Ref::to(item(given, at++));
    return none();
  });
}

PyObject* get_state(PyObject*, PyObject*) {
  return answer([] { return state(); });
}

/// observe(function): it is shown each call, as (PreparedCall, tensors), before it runs; None ends that.
PyObject* observe(PyObject*, PyObject* function) {
  return answer([&] {
    const Ref before = std::exchange(observer(), function == Py_None ? Ref() : Ref::to(function));
    return before ? before : none();
  });
}

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef functions_of_module[] = {
    {"ask", ask, METH_O, "Takes PyTorch's functions of tensors."},
    {"ask_state", ask_state, METH_O, "Takes the functions that say in which state a call is made."},
    {"state", get_state, METH_NOARGS, "The state in which a call would be made now; None within modes."},
    {"key_of", fast(key_of), METH_FASTCALL, "The key of all calls that differ in tensors alone."},
    {"repeated", fast(repeated), METH_FASTCALL, "The results of a call like an earlier one; None of any other."},
    {"observe", observe, METH_O, "Shows each call to a function before it runs; the function before."},
    {}};

PyModuleDef module_definition = {PyModuleDef_HEAD_INIT,
                                 "scoremod_torch",
                                 "Calls of scoremod.torch.",
                                 -1,
                                 functions_of_module,
                                 nullptr,
                                 nullptr,
                                 nullptr,
                                 nullptr};

void add(PyObject* module, const char* name, const Ref& object) {
  checked(PyModule_AddObjectRef(module, name, object.get()));
}

}  // namespace

Ref make_module() {
  Ref module = checked(PyModule_Create(&module_definition));
  add(module.get(), "SizesLayout", make_sizes_layout_type());
  add(module.get(), "Signature", make_signature_type());
  add(module.get(), "PreparedCall", make_prepared_call_type());
  add(module.get(), "Forward", make_forward_type());
  add(module.get(), "CallVariant", make_call_variant_type());
  add(module.get(), "KEPT_SCRATCH", checked(PyLong_FromSize_t(kKeptScratch)));
  add(module.get(), "TENSOR_ALIGNMENT", checked(PyLong_FromSize_t(kTensorAlignment)));
  add(module.get(), "VERSION", checked(PyUnicode_FromString(SCOREMOD_VERSION_TEXT)));
  return module;
}

}  // namespace scoremod::torch_binding

// Python looks for this name.
PyMODINIT_FUNC PyInit_scoremod_torch() {  // NOLINT(readability-identifier-naming)
  return scoremod::torch_binding::answer([] { return scoremod::torch_binding::make_module(); });
}
