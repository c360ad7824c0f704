#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "scoremod/program.hpp"

#include "ir/scalar_eval.hpp"

namespace scoremod::test {

/// The values of a program's leaves at one element.
template <class Real>
struct Element {
  Real score = 0;
  Real upstream = 0;
  std::int32_t b = 0, h = 0, q = 0, kv = 0;
  /// Reads an operand: by its number, and for a table at the computed indices, which the reader clamps.
  std::function<ir::Scalar<Real>(std::uint32_t operand, std::span<const std::int32_t> indices)> read;
};

/// The value of every node of the program at one element, by ir::eval_op and nothing else.
template <class Real>
std::vector<ir::Scalar<Real>> interpret(const Program& program, const Element<Real>& element);

extern template std::vector<ir::Scalar<float>> interpret(const Program&, const Element<float>&);
extern template std::vector<ir::Scalar<double>> interpret(const Program&, const Element<double>&);

}  // namespace scoremod::test
