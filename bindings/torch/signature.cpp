#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "prepared_call.hpp"
#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

using Field = std::pair<std::string_view, std::size_t>;

constexpr std::array<Field, 7> kForward{{{"q", offsetof(scoremod_forward_args, q)},
                                         {"k", offsetof(scoremod_forward_args, k)},
                                         {"v", offsetof(scoremod_forward_args, v)},
                                         {"o", offsetof(scoremod_forward_args, o)},
                                         {"lse", offsetof(scoremod_forward_args, lse)},
                                         {"max_logit", offsetof(scoremod_forward_args, max_logit)},
                                         {"amax_o", offsetof(scoremod_forward_args, amax_o)}}};
constexpr std::array<Field, 9> kBackward{{{"q", offsetof(scoremod_backward_args, q)},
                                          {"k", offsetof(scoremod_backward_args, k)},
                                          {"v", offsetof(scoremod_backward_args, v)},
                                          {"o", offsetof(scoremod_backward_args, o)},
                                          {"lse", offsetof(scoremod_backward_args, lse)},
                                          {"d_o", offsetof(scoremod_backward_args, d_o)},
                                          {"dq", offsetof(scoremod_backward_args, dq)},
                                          {"dk", offsetof(scoremod_backward_args, dk)},
                                          {"dv", offsetof(scoremod_backward_args, dv)}}};

std::size_t place_of(std::span<const Field> fields, std::string_view tensor) {
  for (const auto& [name, place] : fields) {
    if (name == tensor) return place;
  }
  fail(PyExc_ValueError, "expected the name of a tensor of the call's arguments");
}

/// Signature.make(function, is_forward, fields, operands, gradients, scale, itemsizes, made_here, device, names,
/// stream, scratch, refuse, put_aligned). fields: names; operands, gradients: addresses of names; made_here: names.
PyObject* make(PyObject* type, PyObject* arguments) {
  return answer([&] {
    PyObject *function = nullptr, *fields = nullptr, *operands = nullptr, *gradients = nullptr, *scale = nullptr;
    PyObject *itemsizes = nullptr, *made_here = nullptr, *names = nullptr, *stream = nullptr, *scratch = nullptr;
    PyObject *refuse = nullptr, *put_aligned = nullptr;
    int is_forward = 0, device = 0;
    if (PyArg_ParseTuple(arguments, "OpOOOOOOiOOOOO", &function, &is_forward, &fields, &operands, &gradients, &scale,
                         &itemsizes, &made_here, &device, &names, &stream, &scratch, &refuse, &put_aligned) == 0)
      throw PythonError{};
    Ref made = call(Ref::to(type));
    CallSignature& own = Type<CallSignature>::known(made.get());
    own.function = reinterpret_cast<CallSignature::Function>(pointer(function));
    own.is_forward = is_forward != 0;
    const std::span<const Field> known = own.is_forward ? std::span<const Field>(kForward) : kBackward;
    for (Py_ssize_t i = 0; i < size_of(fields); ++i) {
      own.fields.push_back(place_of(known, text_of(item(fields, i))));
      own.is_made_here.push_back(checked(PySequence_Contains(made_here, item(fields, i))) != 0);
    }
    for (Py_ssize_t i = 0; i < size_of(operands); ++i)
      own.operands.push_back({static_cast<const char*>(pointer(item(operands, i))), {nullptr, 0}});
    for (Py_ssize_t i = 0; i < size_of(gradients); ++i)
      own.gradients.push_back({static_cast<const char*>(pointer(item(gradients, i))), {nullptr, 0}});
    own.is_made_here.resize(own.count(), false);
    for (Py_ssize_t i = 0; i < size_of(itemsizes); ++i) own.itemsizes.push_back(integer(item(itemsizes, i)));
    if (own.itemsizes.size() != own.count()) fail(PyExc_ValueError, "expected the bytes of an element of each tensor");
    if (scale != Py_None) own.scale = static_cast<float>(PyFloat_AsDouble(scale));
    if (PyErr_Occurred() != nullptr) throw PythonError{};
    own.device = device;
    own.names = Ref::to(names);
    if (stream != Py_None) own.stream = Ref::to(stream);
    own.scratch = Ref::to(scratch);
    own.refuse = Ref::to(refuse);
    own.put_aligned = Ref::to(put_aligned);
    return made;
  });
}

PyMethodDef methods_of_type[] = {{"make", make, METH_VARARGS | METH_CLASS, "The signature of calls in one direction."},
                                 {}};

}  // namespace

Ref make_signature_type() {
  return Type<CallSignature>::make("scoremod_torch.Signature", "The part of calls that is the same at all sizes.",
                                   methods_of_type, nullptr);
}

}  // namespace scoremod::torch_binding
