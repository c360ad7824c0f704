#pragma once

#include <string>
#include <vector>

#include "scoremod/problem.hpp"

namespace scoremod::bench {

enum class Direction { kForward, kBackward };
const char* to_string(Direction direction);

/// One line of the benchmark: a problem in one direction.
struct BenchCase {
  std::string name;
  Direction direction = Direction::kForward;
  AttentionProblem problem;
};

/// Reads a JSON array of {"name", "problem"}, where problem is as in a PROBLEM file. Each gives a forward and, where
/// `with_backward`, a backward case. Throws Error(kInvalidArgument) or Error(kEnvironment).
std::vector<BenchCase> load_cases(const std::string& path, bool with_backward);

/// Floating-point operations of the matrix products alone, of every query with every key: two products forward, five
/// backward.
double product_flops(const BenchCase& bench_case);

}  // namespace scoremod::bench
