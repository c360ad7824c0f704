#include "repeated.hpp"

#include <array>
#include <memory>

#include "forward.hpp"
#include "state.hpp"
#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

/// The arguments of repeated() behind the first: key_of()'s, and the caller's output.
struct Request {
  PyObject *query, *key, *value, *score_mod, *mask_mod, *given, *plain;
  PyObject* out = Py_None;
};

constexpr Py_ssize_t kRequest = 7;
constexpr Py_ssize_t kGiven = 5;

Request request_of(PyObject* const* arguments) {
  return {arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5], arguments[6]};
}

PyObject* interned(const char* text) { return checked(PyUnicode_InternFromString(text)).release(); }

/// A function's code by identity, as codes' own hashes go through all of them; None of no function. A Site keeps them.
Ref code_of(PyObject* function) {
  if (function == Py_None) return none();
  static PyObject* const name = interned("__code__");
  return checked(PyLong_FromVoidPtr(checked(PyObject_GetAttr(function, name)).get()));
}

Ref key_of(const Request& request) {
  const Ref score_mod = code_of(request.score_mod), mask_mod = code_of(request.mask_mod);
  const auto truth = [](bool value) { return value ? Py_True : Py_False; };
  std::array<PyObject*, kGiven> is_none{};
  for (Py_ssize_t i = 0; i < kGiven; ++i)
    is_none[static_cast<std::size_t>(i)] = truth(item(request.given, i) == Py_None);
  return checked(PyTuple_Pack(11, score_mod.get(), mask_mod.get(), truth(request.query == request.key),
                              truth(request.key == request.value), truth(request.query == request.value), is_none[0],
                              is_none[1], is_none[2], is_none[3], is_none[4], request.plain));
}

/// The variants of the calls that are like this one; none where nothing is known. What is called may have no text, and
/// what is given no hash.
Ref variants_of(PyObject* sites, const Request& request) {
  const auto is_unknown = [] {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0 && PyErr_ExceptionMatches(PyExc_TypeError) == 0) return false;
    PyErr_Clear();
    return true;
  };
  try {
    const Ref key = key_of(request);
    PyObject* const site = PyDict_GetItemWithError(sites, key.get());
    if (site == nullptr && PyErr_Occurred() != nullptr) throw PythonError{};
    if (site == nullptr) return {};
    static PyObject* const name = interned("variants");
    return checked(PyObject_GetAttr(Ref::to(site).get(), name));
  } catch (const PythonError&) {
    if (!is_unknown()) throw;
    return {};
  }
}

bool reads_the_same(const Ref& watch, PyObject* function, PyObject* tensors) {
  if (!watch) return function == Py_None;
  return is_true(call(watch, function, tensors));
}

/// The tensors of a call, each of which somebody else keeps, too: the caller, or what the functions read.
class Tensors {
 public:
  explicit Tensors(const Request& request) : list_(checked(PyList_New(0))) {
    for (PyObject* const tensor : {request.query, request.key, request.value}) add(tensor);
  }
  void add(PyObject* tensor) { checked(PyList_Append(list_.get(), tensor)); }
  void add_given(PyObject* given) {
    for (Py_ssize_t i = 0; i < kGiven; ++i) {
      if (PyObject* const each = item(given, i); each != Py_None) add(each);
    }
  }
  PyObject* list() const { return list_.get(); }
  PyObject* operator[](Py_ssize_t at) const { return checked_borrowed(PyList_GetItem(list_.get(), at)); }

  /// The shape and the strides of each.
  Ref looks() const {
    static PyObject* const shape = interned("shape");
    static PyObject* const stride = interned("stride");
    const Py_ssize_t count = PyList_Size(list_.get());
    Ref all = checked(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const tensor = (*this)[i];
      const Ref sizes = checked(PyObject_GetAttr(tensor, shape)),
                strides = checked(PyObject_CallMethodObjArgs(tensor, stride, nullptr));
      checked(PyTuple_SetItem(all.get(), i, checked(PyTuple_Pack(2, sizes.get(), strides.get())).release()));
    }
    return all;
  }

  /// Each once, in a tuple; none where others come twice than the variant has.
  Ref distinct(const CallVariant& variant) const {
    if (variant.again.empty()) return checked(PyList_AsTuple(list_.get()));
    for (const auto& [place, first] : variant.again) {
      if ((*this)[place] != (*this)[first]) return {};
    }
    Ref tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(variant.once.size())));
    Py_ssize_t at = 0;
    for (const Py_ssize_t place : variant.once)
      checked(PyTuple_SetItem(tuple.get(), at++, Ref::to((*this)[place]).release()));
    return tuple;
  }

 private:
  Ref list_;
};

/// The results of a call like a known one; none where its numbers, or who requires gradients, are other ones.
Ref run_like(const KnownCall& known, const Tensors& tensors, PyObject* out) {
  for (const auto& [place, holds] : known.checks) {
    if (!is_true(call(holds, tensors[place], tensors[1]))) return {};
  }
  if (known.run) return call(known.run, tensors.list(), out);
  static PyObject* const requires_grad = interned("requires_grad");
  for (const auto& [place, is_learned] : known.learned) {
    if (is_true(checked(PyObject_GetAttr(tensors[place], requires_grad))) != is_learned) return {};
  }
  std::vector<PyObject*> operands;
  operands.reserve(known.operands.size());
  for (const Py_ssize_t place : known.operands) operands.push_back(tensors[place]);
  CallExtras extras;
  extras.keeps_scratch = true;
  return run_forward(Type<Forward>::known(known.forward.get()), known.at.get(),
                     {tensors[0], tensors[1], tensors[2], operands, out}, extras);
}

bool are_equal(const Ref& looks, const Ref& others) {
  return checked(PyObject_RichCompareBool(looks.get(), others.get(), Py_EQ)) != 0;
}

/// The variant's last call, after its method of this name has put there the one of these looks; null where there is
/// none. Meanwhile another thread may have put its own.
std::shared_ptr<const KnownCall> found_by(PyObject* method, PyObject* object, const Tensors& tensors,
                                          const Ref& looks) {
  if (!is_true(checked(PyObject_CallMethodObjArgs(object, method, tensors.list(), looks.get(), nullptr))))
    return nullptr;
  std::shared_ptr<const KnownCall> last = Type<CallVariant>::known(object).last;
  return last != nullptr && are_equal(last->looks, looks) ? last : nullptr;
}

/// The results of a call at sizes that the library may refuse before it writes anything: its workspace may be too
/// small. Such sizes get an attention of their own.
Ref run_at_new_sizes(const KnownCall& known, PyObject* object, const Tensors& tensors, PyObject* out) {
  try {
    --known.calls_left;
    return run_like(known, tensors, out);
  } catch (const PythonError&) {
    if (PyErr_ExceptionMatches(state_functions().error.get()) == 0) throw;
    PyErr_Clear();
  }
  static PyObject* const settle = interned("settle");
  const auto settled = found_by(settle, object, tensors, known.looks);
  return settled == nullptr ? Ref() : run_like(*settled, tensors, out);
}

/// The results of a call by one variant; none where it is none of its.
Ref served(PyObject* object, const Request& request, const Tensors& tensors) {
  const CallVariant& variant = Type<CallVariant>::known(object);
  const Ref distinct = tensors.distinct(variant);
  if (!distinct) return {};
  std::shared_ptr<const KnownCall> known = variant.last;
  if (known != nullptr && known->guard && is_true(checked(PyObject_CallObject(known->guard.get(), distinct.get()))))
    return run_like(*known, tensors, request.out);
  // The looks of tensors, and nothing else, stand beside it.
  if (!is_true(checked(PyObject_CallObject(variant.of_any_size.get(), distinct.get())))) return {};
  const Ref looks = tensors.looks();
  if (known == nullptr || known->calls_left == 0 || !are_equal(known->looks, looks)) {
    static PyObject* const serve = interned("serve");
    known = found_by(serve, object, tensors, looks);
    if (known == nullptr) return {};
  }
  return known->calls_left < 0 ? run_like(*known, tensors, request.out)
                               : run_at_new_sizes(*known, object, tensors, request.out);
}

Ref repeated(PyObject* sites, const Request& request) {
  const Ref variants = variants_of(sites, request);
  if (!variants || size_of(variants.get()) == 0) return none();
  const Ref now = state();
  for (Py_ssize_t i = 0; i < size_of(variants.get()); ++i) {
    PyObject* const object = item(variants.get(), i);
    const CallVariant& variant = Type<CallVariant>::of(object);
    if (checked(PyObject_RichCompareBool(variant.state.get(), now.get(), Py_EQ)) == 0) continue;
    Tensors tensors(request);
    if (!reads_the_same(variant.score_mod, request.score_mod, tensors.list()) ||
        !reads_the_same(variant.mask_mod, request.mask_mod, tensors.list()))
      continue;
    tensors.add_given(request.given);
    Ref results = served(object, request, tensors);
    if (results && !results.is_none()) return results;
  }
  return none();
}

}  // namespace

PyObject* repeated(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return answer([&] {
    if (count != kRequest + 2) fail(PyExc_TypeError, "repeated: expected nine arguments");
    Request request = request_of(arguments + 1);
    request.out = arguments[kRequest + 1];
    return repeated(arguments[0], request);
  });
}

PyObject* key_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return answer([&] {
    if (count != kRequest) fail(PyExc_TypeError, "key_of: expected seven arguments");
    return key_of(request_of(arguments));
  });
}

}  // namespace scoremod::torch_binding
