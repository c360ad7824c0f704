#pragma once

#include <cstdint>
#include <vector>

#include "scoremod/c_api.h"

#include "python.hpp"

namespace scoremod::torch_binding {

/// Which numbers describe the sizes of a structure's calls: the layout of their scoremod_sizes.
struct SizesLayout {
  struct Operand {
    const char* name;  ///< text that `owner` keeps
    std::size_t rank;
    bool has_strides;
  };

  const scoremod_attention* open = nullptr;  ///< that leaves the sizes open
  Ref owner;                                 ///< keeps the attention
  std::vector<std::size_t> strided;          ///< offsets in scoremod_sizes of the tensors that have strides
  std::vector<Operand> operands;
};

/// Python's type SizesLayout: SizesLayout.make(owner, handle, strided, operands), with the names of the tensors that
/// have strides, and (address of the name, rank, whether it has strides) of each operand.
Ref make_sizes_layout_type();

/// The sizes of a call, which stay where they are.
class CallSizes {
 public:
  /// sizes: the nine numbers of scoremod_sizes; numbers: four strides of each tensor, then the shape, and the strides
  /// that it has, of each operand. Both are tuples of ints.
  CallSizes(const SizesLayout& layout, PyObject* sizes, PyObject* numbers);
  CallSizes(const CallSizes&) = delete;
  CallSizes& operator=(const CallSizes&) = delete;

  const scoremod_sizes* get() const { return &sizes_; }

 private:
  scoremod_sizes sizes_{};
  std::vector<std::int64_t> numbers_;
  std::vector<scoremod_operand_sizes> operands_;
};

}  // namespace scoremod::torch_binding
