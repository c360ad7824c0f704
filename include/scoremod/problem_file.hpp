#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

/// The source of a tensor's values.
enum class InputKind : std::uint8_t {
  kNpy,       ///< a NumPy file
  kValues,    ///< written out, in row-major order
  kNormal,    ///< floats of mean `low` and standard deviation `high`
  kUniform,   ///< floats in [low, high), or integers in [low, high]
  kSegments,  ///< i32 ids that start at 0 and grow along the last axis, about `high` different ones
};

/// One entry of a problem file's "inputs".
struct InputSpec {
  std::string tensor;  ///< "q", "k", "v", "d_o" or an operand's name
  InputKind kind = InputKind::kUniform;
  std::string path;            ///< kNpy: as written, relative to the problem file's folder
  std::vector<double> values;  ///< kValues: one for each element; booleans are 0 and 1
  double low = 0, high = 0;

  bool operator==(const InputSpec&) const = default;
};

/// A PROBLEM file: the problem, and its inputs. A tensor without an entry in `inputs` is random.
struct ProblemFile {
  AttentionProblem problem;
  std::vector<InputSpec> inputs;
  std::uint64_t seed = 0;  ///< of the random tensors

  bool operator==(const ProblemFile&) const = default;
};

/// Reads the JSON text of a PROBLEM file: docs/reference/problem.md. The problem is validated, and every input fits its
/// tensor. Throws Error(kInvalidArgument) that names the field.
SCOREMOD_API ProblemFile parse_problem_file(std::string_view json);

}  // namespace scoremod
