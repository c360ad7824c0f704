#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "python.hpp"

namespace scoremod::torch_binding {

/// A call that was made before: others differ from it in addresses alone where their tensors look the same.
struct KnownCall {
  Ref looks;                                         ///< ((shape, strides) of each tensor)
  Ref guard;                                         ///< (tensor...) -> whether they look so, in less time; or none
  std::vector<std::pair<Py_ssize_t, Ref>> checks;    ///< (place, (tensor, key) -> whether its numbers are right)
  std::vector<std::pair<Py_ssize_t, bool>> learned;  ///< (place, whether it requires gradients)
  std::vector<Py_ssize_t> operands;                  ///< places
  Ref forward, at;                                   ///< a Forward and a PreparedCall; or
  Ref run;                                           ///< (tensors, out) -> the results
  /// How many more of these calls come before their sizes have an attention and a guard of their own; below 0 where
  /// they have. The library may refuse sizes that have none. The GIL guards it.
  mutable int calls_left = -1;
};

/// Calls within one state of PyTorch, whose functions read the same but for addresses, and whose tensors differ in
/// sizes and strides alone. Python's class Variant derives from it, and finds calls of other sizes. Its serve() and
/// settle() keep the call of given looks as the last one, and say whether there is one.
struct CallVariant {
  Ref state;
  Ref score_mod,
      mask_mod;     ///< (function, list) -> whether it reads the same, and adds the tensors; none of no function
  Ref of_any_size;  ///< (tensor...) -> whether they look the same but for sizes and strides
  /// (place, place of the first) of tensors that come again, and the places of those that come once.
  std::vector<std::pair<Py_ssize_t, Py_ssize_t>> again;
  std::vector<Py_ssize_t> once;
  /// The last call; null before there is one. Another thread may put its own in its place.
  std::shared_ptr<const KnownCall> last;
};

Ref make_call_variant_type();

/// Functions of the module, whose table of methods has them.
PyObject* repeated(PyObject*, PyObject* const* arguments, Py_ssize_t count);
PyObject* key_of(PyObject*, PyObject* const* arguments, Py_ssize_t count);

}  // namespace scoremod::torch_binding
