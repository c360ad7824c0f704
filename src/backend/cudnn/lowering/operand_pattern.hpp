#pragma once

#include <array>
#include <string>
#include <vector>

#include "scoremod/program.hpp"

#include "backend/cudnn/lowering/modifier_graph.hpp"

namespace scoremod::backend::cudnn {

/// A tensor that a modifier reads, as it lies in device memory.
struct OperandTensor {
  std::array<bool, kAxisCount> axes{};             ///< that it varies along
  std::array<std::int64_t, kAxisCount> strides{};  ///< in elements; of no meaning along the other axes
  DType dtype = DType::kF32;
};

/// A tensor of the problem's sizes along these axes, the last one innermost.
OperandTensor dense_operand(const std::array<bool, kAxisCount>& axes, const std::array<std::int64_t, kAxisCount>& sizes,
                            DType dtype);

/// How many elements such a tensor has in a problem of usual sizes, 1 along axes where this one has 1. It decides which
/// operands are computed beforehand. It must not depend on sizes, or the small problem of a trial would be lowered in
/// another way than those it stands for.
double usual_elements(const std::array<bool, kAxisCount>& axes, const std::array<std::int64_t, kAxisCount>& sizes);

/// A way to give cuDNN an operand, and its name in the pattern table.
struct OperandPattern {
  std::string name;
  ModifierTensor tensor;
};

/// True for a tensor with an entry for each row and none for each key: cuDNN takes only so many.
bool is_row_vector(const ModifierTensor& tensor);

/// The ways to give cuDNN an operand, the fastest first. `sizes` are those of the score tensor.
std::vector<OperandPattern> operand_patterns(const OperandTensor& operand,
                                             const std::array<std::int64_t, kAxisCount>& sizes, bool backward);

}  // namespace scoremod::backend::cudnn
