#pragma once

#define PY_SSIZE_T_CLEAN
// The stable ABI: one file serves CPython 3.11 and all later versions.
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <new>
#include <string_view>
#include <utility>

namespace scoremod::torch_binding {

/// A Python exception is set, which the caller of the binding gets.
struct PythonError {};

/// A reference of one's own to an object, or none.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref& other) : object_(other.object_) { Py_XINCREF(object_); }
  Ref& operator=(const Ref& other) { return *this = Ref(other); }
  ~Ref() { Py_XDECREF(object_); }

  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }
  bool is_none() const { return object_ == Py_None; }

 private:
  PyObject* object_ = nullptr;
};

/// The result of a function of Python's. Throws PythonError where it failed.
inline Ref checked(PyObject* owned) {
  if (owned == nullptr) throw PythonError{};
  return Ref(owned);
}
inline int checked(int status) {
  if (status < 0) throw PythonError{};
  return status;
}
inline PyObject* checked_borrowed(PyObject* borrowed) {
  if (borrowed == nullptr) throw PythonError{};
  return borrowed;
}

template <class... Arguments>
Ref call(const Ref& function, Arguments... arguments) {
  return checked(PyObject_CallFunctionObjArgs(function.get(), arguments..., nullptr));
}

inline bool is_true(const Ref& object) {
  if (object.get() == Py_True) return true;
  return object.get() != Py_False && checked(PyObject_IsTrue(object.get())) != 0;
}

inline long long integer(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
  return value;
}

inline void* pointer(PyObject* object) {
  void* const value = PyLong_AsVoidPtr(object);
  if (value == nullptr && PyErr_Occurred() != nullptr) throw PythonError{};
  return value;
}

[[noreturn]] inline void fail(PyObject* type, const char* text) {
  PyErr_SetString(type, text);
  throw PythonError{};
}

/// The length and the items of a tuple.
inline Py_ssize_t size_of(PyObject* tuple) {
  const Py_ssize_t size = PyTuple_Size(tuple);
  if (size < 0) throw PythonError{};
  return size;
}
inline PyObject* item(PyObject* tuple, Py_ssize_t at) { return checked_borrowed(PyTuple_GetItem(tuple, at)); }

/// The text of a str, which lives as long as that. The stable ABI has the length beside it.
inline std::string_view text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) throw PythonError{};
  return {text, static_cast<std::size_t>(size)};
}

/// Runs the body of a function that Python calls; null where an exception is set.
template <class Body>
PyObject* answer(const Body& body) noexcept {
  try {
    return body().release();
  } catch (const PythonError&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

inline Ref none() { return Ref::to(Py_None); }

}  // namespace scoremod::torch_binding
