#pragma once

#include <cstdint>
#include <optional>

#include "scoremod/program.hpp"

namespace scoremod::backend::kernels {

/// What a program adds to the time of attention kernels, for all scores of the shape that costs were measured at
/// (backend/measured_at.hpp), in milliseconds on an H200.
struct NodeCosts {
  double value = 0;  ///< of the forward's value, or the derivative's value and gradient of the score
  double keep = 0;   ///< of the mask alone
};

/// What evaluating a node for each score adds to it.
double node_cost(const Node& node, const Program& program);

/// Of the program that a direction's kernels evaluate, which read what they can from difference_tables() unless
/// `evaluates_all`, and operand number `copied_operand`, if any, from tiles that are copied ahead. Nodes that vary
/// along queries or keys alone are evaluated once for several scores, and those that vary along neither cost nothing.
NodeCosts node_costs(const Program& program, bool evaluates_all = false,
                     std::optional<std::uint32_t> copied_operand = {});

}  // namespace scoremod::backend::kernels
