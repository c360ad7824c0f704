#include <memory>
#include <vector>

#include "prepared_call.hpp"
#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

PreparedCall& own(PyObject* self) { return Type<PreparedCall>::known(self); }

/// fix(signature, owner, handle, bytes of each tensor, bytes of the workspace): of an attention of fixed sizes.
PyObject* fix(PyObject* self, PyObject* arguments) {
  return answer([&] {
    PyObject *signature = nullptr, *owner = nullptr, *handle = nullptr, *bytes = nullptr;
    Py_ssize_t workspace_bytes = 0;
    if (PyArg_ParseTuple(arguments, "OOOOn", &signature, &owner, &handle, &bytes, &workspace_bytes) == 0)
      throw PythonError{};
    std::vector<std::int64_t> of_tensors;
    for (Py_ssize_t i = 0; i < size_of(bytes); ++i) of_tensors.push_back(integer(item(bytes, i)));
    if (of_tensors.size() != Type<CallSignature>::of(signature).count())
      fail(PyExc_ValueError, "expected the bytes of each tensor of the signature");
    PreparedCall& call = own(self);
    call.signature = Ref::to(signature);
    call.owner = Ref::to(owner);
    call.attention = static_cast<const scoremod_attention*>(pointer(handle));
    call.bytes = std::move(of_tensors);
    call.sizes = nullptr;
    call.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
    return none();
  });
}

/// open(signature, layout, sizes, numbers, bytes of the workspace): of an attention that leaves sizes open, at sizes.
PyObject* open(PyObject* self, PyObject* arguments) {
  return answer([&] {
    PyObject *signature = nullptr, *layout = nullptr, *sizes = nullptr, *numbers = nullptr;
    Py_ssize_t workspace_bytes = 0;
    if (PyArg_ParseTuple(arguments, "OOOOn", &signature, &layout, &sizes, &numbers, &workspace_bytes) == 0)
      throw PythonError{};
    Type<CallSignature>::of(signature);
    const SizesLayout& of_sizes = Type<SizesLayout>::of(layout);
    PreparedCall& call = own(self);
    call.sizes = std::make_unique<CallSizes>(of_sizes, sizes, numbers);
    call.signature = Ref::to(signature);
    call.owner = Ref::to(layout);
    call.attention = of_sizes.open;
    call.bytes.clear();
    call.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
    return none();
  });
}

PyObject* run_known(PyObject* self, PyObject* arguments) {
  return answer([&] {
    PyObject* tensors = nullptr;
    CallExtras extras;
    int keeps_scratch = 0;
    if (PyArg_ParseTuple(arguments, "O|OOp", &tensors, &extras.dropout, &extras.offsets, &keeps_scratch) == 0)
      throw PythonError{};
    extras.keeps_scratch = keeps_scratch != 0;
    std::vector<PyObject*> each;
    for (Py_ssize_t i = 0; i < size_of(tensors); ++i) each.push_back(item(tensors, i));
    run(self, each, extras);
    return none();
  });
}

PyObject* get_rows(PyObject* self, void*) {
  return answer([&] { return own(self).rows ? own(self).rows : none(); });
}
int set_rows(PyObject* self, PyObject* value, void*) {
  own(self).rows = Ref::to(value);
  return 0;
}
PyObject* get_is_like_query(PyObject* self, void*) { return PyBool_FromLong(own(self).is_like_query ? 1 : 0); }
int set_is_like_query(PyObject* self, PyObject* value, void*) {
  const int is_like_query = value == nullptr ? 0 : PyObject_IsTrue(value);
  if (is_like_query < 0) return -1;
  own(self).is_like_query = is_like_query != 0;
  return 0;
}
PyObject* get_workspace_bytes(PyObject* self, void*) { return PyLong_FromSize_t(own(self).workspace_bytes); }

PyObject* get_handle(PyObject* self, void*) {
  return PyLong_FromVoidPtr(const_cast<scoremod_attention*>(own(self).attention));
}
PyObject* get_owner(PyObject* self, void*) {
  return answer([&] { return own(self).owner ? own(self).owner : none(); });
}

PyMethodDef methods_of_type[] = {
    {"fix", fix, METH_VARARGS, "Prepares calls of an attention of fixed sizes."},
    {"open", open, METH_VARARGS, "Prepares calls of an attention that leaves sizes open."},
    {"run_known", run_known, METH_VARARGS, "Calls it with tensors whose looks were compared already."},
    {}};
PyGetSetDef attributes_of_type[] = {
    {"rows", get_rows, set_rows, "the shape of a forward's LSE", nullptr},
    {"is_like_query", get_is_like_query, set_is_like_query,
     "whether a forward's output has the query's shape and strides", nullptr},
    {"handle", get_handle, nullptr, "the address of its attention", nullptr},
    {"owner", get_owner, nullptr, "what keeps the attention", nullptr},
    {"workspace_bytes", get_workspace_bytes, nullptr, "the bytes of its workspace", nullptr},
    {}};

}  // namespace

Ref make_prepared_call_type() {
  return Type<PreparedCall>::make("scoremod_torch.PreparedCall",
                                  "A call of tensors that look as they were prepared for.", methods_of_type,
                                  attributes_of_type, Py_TPFLAGS_BASETYPE);
}

}  // namespace scoremod::torch_binding
