#include <memory>
#include <utility>

#include "forward.hpp"
#include "prepared_call.hpp"
#include "repeated.hpp"
#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

CallVariant& own(PyObject* self) { return Type<CallVariant>::known(self); }

Ref unless_none(PyObject* object) { return object == Py_None ? Ref() : Ref::to(object); }

/// begin(state, score_mod, mask_mod, of_any_size, again, once).
PyObject* begin(PyObject* self, PyObject* arguments) {
  return answer([&] {
    PyObject *state = nullptr, *score_mod = nullptr, *mask_mod = nullptr, *of_any_size = nullptr;
    PyObject *again = nullptr, *once = nullptr;
    if (PyArg_ParseTuple(arguments, "OOOOOO", &state, &score_mod, &mask_mod, &of_any_size, &again, &once) == 0)
      throw PythonError{};
    CallVariant& variant = own(self);
    variant.state = Ref::to(state);
    variant.score_mod = unless_none(score_mod);
    variant.mask_mod = unless_none(mask_mod);
    variant.of_any_size = Ref::to(of_any_size);
    for (Py_ssize_t i = 0; i < size_of(again); ++i)
      variant.again.emplace_back(integer(item(item(again, i), 0)), integer(item(item(again, i), 1)));
    for (Py_ssize_t i = 0; i < size_of(once); ++i) variant.once.push_back(integer(item(once, i)));
    return none();
  });
}

std::shared_ptr<KnownCall> known_call(PyObject* looks, PyObject* guard, PyObject* checks) {
  auto known = std::make_shared<KnownCall>();
  known->looks = Ref::to(looks);
  known->guard = unless_none(guard);
  for (Py_ssize_t i = 0; i < size_of(checks); ++i)
    known->checks.emplace_back(integer(item(item(checks, i), 0)), Ref::to(item(item(checks, i), 1)));
  return known;
}

/// keep(looks, guard, checks, learned, operands, forward, at, calls_left).
PyObject* keep(PyObject* self, PyObject* arguments) {
  return answer([&] {
    PyObject *looks = nullptr, *guard = nullptr, *checks = nullptr, *learned = nullptr, *operands = nullptr;
    PyObject *forward = nullptr, *at = nullptr;
    int calls_left = -1;
    if (PyArg_ParseTuple(arguments, "OOOOOOOi", &looks, &guard, &checks, &learned, &operands, &forward, &at,
                         &calls_left) == 0)
      throw PythonError{};
    auto known = known_call(looks, guard, checks);
    for (Py_ssize_t i = 0; i < size_of(learned); ++i)
      known->learned.emplace_back(integer(item(item(learned, i), 0)), item(item(learned, i), 1) == Py_True);
    for (Py_ssize_t i = 0; i < size_of(operands); ++i) known->operands.push_back(integer(item(operands, i)));
    Type<Forward>::of(forward);
    Type<PreparedCall>::of(at);
    known->forward = Ref::to(forward);
    known->at = Ref::to(at);
    known->calls_left = calls_left;
    own(self).last = std::move(known);
    return none();
  });
}

/// keep_function(looks, guard, checks, function).
PyObject* keep_function(PyObject* self, PyObject* arguments) {
  return answer([&] {
    PyObject *looks = nullptr, *guard = nullptr, *checks = nullptr, *function = nullptr;
    if (PyArg_ParseTuple(arguments, "OOOO", &looks, &guard, &checks, &function) == 0) throw PythonError{};
    auto known = known_call(looks, guard, checks);
    known->run = Ref::to(function);
    own(self).last = std::move(known);
    return none();
  });
}

PyMethodDef methods_of_type[] = {
    {"begin", begin, METH_VARARGS, "The state of the calls, and what their functions read."},
    {"keep", keep, METH_VARARGS, "The next call is tried as one like this."},
    {"keep_function", keep_function, METH_VARARGS, "The same, with a function of Python's that makes the call."},
    {}};

}  // namespace

Ref make_call_variant_type() {
  return Type<CallVariant>::make("scoremod_torch.CallVariant",
                                 "Calls within one state, whose functions read the same but for addresses.",
                                 methods_of_type, nullptr, Py_TPFLAGS_BASETYPE);
}

}  // namespace scoremod::torch_binding
