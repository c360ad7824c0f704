#pragma once

#include <vector>

#include "python.hpp"

namespace scoremod::torch_binding {

/// Python's objects of a class of C++.
template <class Value>
class Type {
 public:
  /// Makes the type. Python may derive from one with `flags` Py_TPFLAGS_BASETYPE.
  static Ref make(const char* name, const char* docstring, PyMethodDef* methods, PyGetSetDef* attributes,
                  unsigned flags = 0) {
    std::vector<PyType_Slot> slots{{Py_tp_new, reinterpret_cast<void*>(&create)},
                                   {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
                                   {Py_tp_doc, const_cast<char*>(docstring)},
                                   {Py_tp_methods, methods}};
    if (attributes != nullptr) slots.push_back({Py_tp_getset, attributes});
    slots.push_back({0, nullptr});
    PyType_Spec spec{name, sizeof(Object), 0, Py_TPFLAGS_DEFAULT | flags, slots.data()};
    Ref type = checked(PyType_FromSpec(&spec));
    type_ = reinterpret_cast<PyTypeObject*>(Ref(type).release());
    return type;
  }

  /// The value of an object of this type. Throws TypeError for any other.
  static Value& of(PyObject* object) {
    if (PyObject_TypeCheck(object, type_) == 0) fail(PyExc_TypeError, "expected another type of the binding");
    return known(object);
  }
  /// of() of an object whose type is known, as that of a method's own is.
  static Value& known(PyObject* object) { return *reinterpret_cast<Object*>(object)->value; }

 private:
  struct Object {
    PyObject head;
    Value* value;
  };

  static PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
    return answer([&] {
      auto* const allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
      Ref made = checked(allocate(type, 0));
      reinterpret_cast<Object*>(made.get())->value = new Value;
      return made;
    });
  }
  static void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    delete reinterpret_cast<Object*>(object)->value;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
  }

  static inline PyTypeObject* type_ = nullptr;
};

}  // namespace scoremod::torch_binding
