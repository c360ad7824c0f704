#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/c_api.h"
#include "scoremod/call.hpp"

#include "c_structs/call_memory.hpp"
#include "c_structs/choices.hpp"
#include "c_structs/given_struct.hpp"

namespace scoremod::fuzz {

/// A tensor's field in the struct of a call.
struct TensorField {
  const char* tensor;
  std::size_t offset;
};

/// An array of names and memory in the struct of a call.
struct DrawnArray {
  std::vector<std::optional<std::string>> names;  ///< a null pointer where there is none
  std::vector<Place> places;
  bool is_null = false;
  std::size_t count = 0;  ///< any number beside a null pointer, else at most so many as there are
};

/// A call of the C interface, forward or backward: what its structs say, and which memory each pointer names.
struct DrawnCall {
  bool is_backward = false;
  std::vector<Place> tensors;  ///< in the order of the fields
  DrawnArray operands, gradients;
  DrawnSize size, options_size;
  std::optional<scoremod_call_options> options;
};

DrawnCall draw_call(Choices& choices, const CallMemory& memory, bool is_backward);

/// The structs of a drawn call on one memory, as the C interface takes them.
template <class Args>
class MadeCall {
 public:
  MadeCall(const DrawnCall& drawn, const CallMemory& memory);

  Args* get() { return args_.get(); }
  const GivenStruct<Args>& given() const { return args_; }
  /// Makes the C++ interface's form of the call. Throws Error(kInvalidArgument) for a mistake that only C has.
  auto plain() const;
  /// The workspace is an argument of its own in C++.
  Buffer workspace() const;

 private:
  std::vector<scoremod_operand> operands_;
  std::vector<scoremod_operand_gradient> gradients_;
  std::optional<GivenStruct<scoremod_call_options>> options_;
  GivenStruct<Args> args_;
};

extern template class MadeCall<scoremod_forward_args>;
extern template class MadeCall<scoremod_backward_args>;

/// The tensors' fields of the two structs.
template <class Args>
std::span<const TensorField> fields();

ForwardArgs plain_args(const scoremod_forward_args& args, const CallOptions& options);
BackwardArgs plain_args(const scoremod_backward_args& args, const CallOptions& options);
CallOptions plain_options(const scoremod_call_options& options);

template <class Args>
auto MadeCall<Args>::plain() const {
  const Args args = args_.understood();
  CallOptions options;
  if (args.options != nullptr) options = plain_options(options_->understood());
  return plain_args(args, options);
}

}  // namespace scoremod::fuzz
