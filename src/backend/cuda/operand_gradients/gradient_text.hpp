#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/operand_gradients/gradient_target.hpp"

// How the kernels of a GradientSource name a target and find its entries, for "gradients" and "store_I".

namespace scoremod::embedded {
/// Functions of all kernels, after kProgramPrelude and kExactSum.
extern const std::string_view kGradientPrelude;
}  // namespace scoremod::embedded

namespace scoremod::backend::cuda {

/// As in load_f16 and store_f16.
const char* dtype_name(DType dtype);
/// The type of an element of a target's sums.
const char* sum_type(const GradientTarget& target);
/// Elements that one sum takes.
std::int64_t sum_words(const GradientTarget& target);
std::string output_name(const GradientTarget& target);
/// named("total", target) is "total_3" for operand 3.
std::string named(const char* what, const GradientTarget& target);

/// The indices of a broadcast operand, those of its axes.
std::vector<std::string> own_indices(const GradientTarget& target);
/// Number in dense order of the entry with these indices, one for each of the target's extents.
std::string entry_number(const GradientTarget& target, const std::array<std::string, kAxisCount>& indices);
/// The entry with the indices of the element.
std::string reduced_entry(const GradientTarget& target);
/// The sum of a kBlock target at a row and a column, for the entries of one block.
std::string block_entry(const GradientTarget& target, const char* column);

}  // namespace scoremod::backend::cuda
