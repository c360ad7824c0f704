#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/c_api.h"
#include "scoremod/sizes.hpp"

#include "c_structs/choices.hpp"
#include "c_structs/drawn_problem.hpp"
#include "c_structs/given_struct.hpp"

namespace scoremod::fuzz {

/// One operand's sizes in a call.
struct DrawnOperandSizes {
  const char* name = nullptr;
  std::size_t rank = 0;  ///< any number where neither array is there, else at most theirs
  std::optional<std::array<std::int64_t, 8>> shape, strides;
};

/// The sizes of a call; none stands for a null pointer.
struct DrawnSizes {
  std::optional<scoremod_sizes> sizes;  ///< without pointers
  std::array<std::optional<scoremod_strides>, 8> strides;
  std::vector<DrawnOperandSizes> operands;
  DrawnSize size;
};

DrawnSizes draw_sizes(Choices& choices, const DrawnProblem& problem);

/// Sizes as C takes them. `drawn` outlives this.
class MadeSizes {
 public:
  explicit MadeSizes(const DrawnSizes& drawn);

  const scoremod_sizes* get() { return given_ ? given_->get() : nullptr; }
  /// Makes the C++ interface's form of it. Throws Error(kInvalidArgument) for a mistake that only C has.
  Sizes plain() const;

 private:
  std::vector<scoremod_operand_sizes> operands_;
  std::optional<GivenStruct<scoremod_sizes>> given_;
};

}  // namespace scoremod::fuzz
