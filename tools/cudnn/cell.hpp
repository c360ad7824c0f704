#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.hpp"

namespace scoremod::acceptance {

/// One question of the table: does cuDNN build this ready-made modifier, in this direction, for this device?
struct Cell {
  std::string modifier;
  backend::Direction direction = backend::Direction::kForward;
  std::string device;             ///< its file in src/backend/cudnn/devices, without ".json"
  bool operand_gradient = false;  ///< the gradient of its operand too, which is bf16 then
  std::int64_t dim_qk = 128, dim_v = 128;
};

struct CellResult {
  /// built, refused (by cuDNN or its frontend), not_lowered (by a rule of scoremod's, or no pattern), or failed
  /// (anything else)
  std::string verdict;
  std::string reason;  ///< why not built; when built: why earlier candidates were not
  std::size_t workspace_bytes = 0;
};

/// The devices that the table has columns for, one of each architecture.
const std::vector<std::string>& devices();

/// Every ready-made modifier, in both directions, for every device. Also a full bias with its gradient, and two
/// modifiers with head dims 192 of keys and 128 of values.
std::vector<Cell> cells();

/// The modifier's name, and the head dims where they are not 128.
std::string modifier_text(const Cell& cell);

/// "forward", "backward" or "backward and operand gradient".
std::string direction_text(const Cell& cell);

/// The problem that a cell's modifier is put into: batch 2, heads 4, sequence 512, bf16, BSHD. Windows and prefixes
/// matter at that length.
AttentionProblem problem_of(const Cell& cell);

/// Lowers with the patterns known for `patterns_version` ("9.19.0"), whatever cuDNN is loaded, and builds a plan for
/// the device of `device_json`. May crash: call it in a child process. Throws Error where the machine lacks something.
CellResult build_cell(const Cell& cell, const std::string& device_json, const std::string& patterns_version);

}  // namespace scoremod::acceptance
