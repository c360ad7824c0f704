#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"
#include "scoremod/problem_file.hpp"

namespace scoremod::measure {

enum class Direction { kForward, kBackward };
/// "forward" or "backward".
const char* to_string(Direction direction);

/// One line of a benchmark: a problem in one direction.
struct BenchCase {
  std::string name;
  Direction direction = Direction::kForward;
  AttentionProblem problem;  ///< with stats, and with backward in that direction
  /// Whether a backward call asks for the gradients of float operands.
  bool operand_gradients = true;
  std::vector<InputSpec> inputs;
  std::filesystem::path folder;  ///< the folder that the paths of inputs are relative to
  /// Operands that hold the bytes of another one, which is named second: the ids of documents for queries and keys.
  std::map<std::string, std::string> same_inputs;
  std::uint64_t seed = 0;
  /// A case's "reference" as JSON text, for programs that measure another implementation beside; "null" if the case has
  /// none.
  std::string reference = "null";
};

/// Reads the file as a list of cases, or as a PROBLEM file, which is one case with the file's name. A list is a JSON
/// array of objects with "name" and "problem" (as in a PROBLEM file). Optional are "operand_gradients" (boolean),
/// "same_inputs" ({operand: the operand whose bytes it holds}) and "reference". Each gives a forward and, if
/// `with_backward`, a backward case. Throws Error(kInvalidArgument) that begins with the file's name.
std::vector<BenchCase> load_cases(const std::string& path, bool with_backward);

/// Floating-point operations of the matrix products, of the pairs that the mask keeps as far as that is known without
/// data: WorkEstimate.
double product_flops(const BenchCase& bench_case);

}  // namespace scoremod::measure
