#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::test {

/// One element of the score tensor.
struct Position {
  double score = 0;
  std::int32_t b = 0, h = 0, q = 0, kv = 0;
};

/// An operand's contents: dense, last dimension innermost; bools are 0 or 1.
struct OperandData {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};
using OperandValues = std::map<std::string, OperandData>;

/// The modified score, and whether the key is kept.
struct Outcome {
  double value = 0;
  bool keep = true;
};

/// Evaluates a program at one element, in float64. An index outside a broadcast operand is a test's mistake and throws
/// std::out_of_range; a gather clamps.
Outcome outcome(const Program& program, const Position& position, const OperandValues& operands = {});

}  // namespace scoremod::test
