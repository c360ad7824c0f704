#pragma once

#include <cstdint>
#include <optional>

#include "scoremod/program.hpp"

namespace scoremod::backend::kernels {

/// The time that a program adds to attention kernels, for all scores of the shape that costs were measured at
/// (backend/measured_at.hpp). It is in milliseconds on an H200.
struct NodeCosts {
  double value = 0;  ///< of the forward's value, or the derivative's value and gradient of the score
  double keep = 0;   ///< of the mask alone
};

/// The cost of evaluating a node for each score.
double node_cost(const Node& node, const Program& program);

/// The costs of the program that a direction's kernels evaluate. They read position_tables() unless `evaluates_all`,
/// and operand number `loaded_bias`, if any, from tiles that TMA loads. Nodes that vary along queries or keys alone
/// are evaluated once for several scores, and those that vary along neither cost nothing.
NodeCosts node_costs(const Program& program, bool evaluates_all = false, std::optional<std::uint32_t> loaded_bias = {});

}  // namespace scoremod::backend::kernels
