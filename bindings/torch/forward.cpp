#include "forward.hpp"

#include <array>
#include <vector>

#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

PyObject* make(PyObject* type, PyObject* arguments) {
  return answer([&] {
    PyObject *like_query = nullptr, *output = nullptr, *rows = nullptr;
    if (PyArg_ParseTuple(arguments, "OOO", &like_query, &output, &rows) == 0) throw PythonError{};
    Ref made = call(Ref::to(type));
    Forward& own = Type<Forward>::known(made.get());
    own.like_query = Ref::to(like_query);
    own.output = Ref::to(output);
    if (rows != Py_None) own.rows = Ref::to(rows);
    return made;
  });
}

/// run(at, q, k, v, operands, dropout, offsets, out).
PyObject* run(PyObject* self, PyObject* arguments) {
  return answer([&] {
    PyObject *at = nullptr, *operands = nullptr;
    GivenTensors given{};
    CallExtras extras;
    extras.keeps_scratch = true;
    if (PyArg_ParseTuple(arguments, "OOOOOOOO", &at, &given.q, &given.k, &given.v, &operands, &extras.dropout,
                         &extras.offsets, &given.out) == 0)
      throw PythonError{};
    Type<PreparedCall>::of(at);
    const Ref tuple = checked(PySequence_Tuple(operands));
    std::vector<PyObject*> each;
    for (Py_ssize_t i = 0; i < size_of(tuple.get()); ++i) each.push_back(item(tuple.get(), i));
    given.operands = each;
    return run_forward(Type<Forward>::known(self), at, given, extras);
  });
}

PyMethodDef methods_of_type[] = {{"make", make, METH_VARARGS | METH_CLASS, "How the results of calls are made."},
                                 {"run", run, METH_VARARGS, "The results of a call."},
                                 {}};

}  // namespace

Ref make_forward_type() {
  return Type<Forward>::make("scoremod_torch.Forward", "Forwards of one kind.", methods_of_type, nullptr);
}

Ref run_forward(const Forward& forward, PyObject* at, const GivenTensors& given, const CallExtras& extras) {
  const PreparedCall& prepared = Type<PreparedCall>::known(at);
  const bool is_new_and_alike = given.out == Py_None && prepared.is_like_query;
  const Ref o = is_new_and_alike
                    ? call(forward.like_query, given.q)
                    : call(forward.output, given.q, given.v, given.out, prepared.is_like_query ? Py_True : Py_False);
  Ref rows;
  if (forward.rows) rows = call(forward.rows, given.q, prepared.rows ? prepared.rows.get() : Py_None);
  std::vector<PyObject*> tensors{given.q, given.k, given.v, o.get()};
  std::array<PyObject*, 3> others{Py_None, Py_None, Py_None};
  for (std::size_t i = 0; rows && i < others.size(); ++i) {
    others[i] = item(rows.get(), static_cast<Py_ssize_t>(i));
    if (others[i] != Py_None) tensors.push_back(others[i]);
  }
  tensors.insert(tensors.end(), given.operands.begin(), given.operands.end());
  run(at, tensors, extras);
  return checked(PyTuple_Pack(4, o.get(), others[0], others[1], others[2]));
}

}  // namespace scoremod::torch_binding
