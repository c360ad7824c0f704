#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "scoremod/c_api.h"

#include "call_sizes.hpp"
#include "python.hpp"

namespace scoremod::torch_binding {

/// TMA loads tensors on a GPU from addresses that are multiples of it.
inline constexpr std::uintptr_t kTensorAlignment = 16;

/// The part of calls in one direction that is the same at all sizes. Their tensors come in this order: those of the
/// arguments' own fields, the operands, the gradients of operands.
struct CallSignature {
  using Function = scoremod_status (*)(const scoremod_prepared_call*, char**);

  Function function = nullptr;  ///< scoremod_attention_call
  bool is_forward = true;
  std::vector<std::size_t> fields;  ///< offsets of the tensors in the arguments
  std::vector<scoremod_operand> operands;
  std::vector<scoremod_operand_gradient> gradients;
  std::optional<float> scale;
  std::vector<std::int64_t> itemsizes;
  std::vector<bool> is_made_here;  ///< for the call, so that their memory is as large as they need
  int device = -1;                 ///< the ordinal of a GPU; -1 of the host
  Ref names;                       ///< keeps the operands' names
  Ref stream;                      ///< () -> the current stream; none of the host
  Ref scratch;                     ///< (bytes) -> (tensor, address)
  Ref refuse;                      ///< (status, address of the message) raises
  Ref put_aligned;                 ///< (tensors, addresses) -> (addresses, what they belong to)

  std::size_t count() const { return fields.size() + operands.size() + gradients.size(); }
};

/// A call of one direction, of tensors that look as they were prepared for. Python's class Direction derives from it.
struct PreparedCall {
  Ref signature;
  Ref owner;  ///< keeps the attention
  const scoremod_attention* attention = nullptr;
  std::vector<std::int64_t> bytes;   ///< of each tensor; none where the library holds each tensor's memory to `sizes`
  std::unique_ptr<CallSizes> sizes;  ///< null for an attention of fixed sizes
  std::size_t workspace_bytes = 0;
  bool is_like_query = false;  ///< whether a forward's output has the query's shape and strides
  Ref rows;                    ///< the shape of a forward's LSE
};

/// All that a call has beside its tensors.
struct CallExtras {
  PyObject* dropout = Py_None;  ///< a tensor: the seed and the offset; or None
  PyObject* offsets = Py_None;  ///< four ints, added to the indices; or None
  bool keeps_scratch = false;   ///< whether its workspace may be one that other calls had
};

Ref make_signature_type();
Ref make_prepared_call_type();

/// Calls it with these tensors, whose looks were compared already. self: the PreparedCall's own object.
void run(PyObject* self, std::span<PyObject* const> tensors, const CallExtras& extras);

/// Who is shown each call before it runs, as (PreparedCall, tensors); none but in tests.
Ref& observer();

}  // namespace scoremod::torch_binding
