#pragma once

#include <functional>

#include "scoremod/check.hpp"

#include "check/check_case.hpp"
#include "support/emulated_device.hpp"

namespace scoremod::test {

/// The shape of a direction's kernels.
using ShapeOf = std::function<backend::kernels::TileShape(const AttentionProblem&, backend::Direction)>;

struct EmulatedFaults {
  EmulatedLaunches::Fault forward = {}, backward = {};
  EmulatedLaunches::Fault of_both = {};  ///< in both directions' texts, beside them

  bool planted() const { return !forward.first.empty() || !backward.first.empty(); }
};

/// What the attention kernels of a problem's directions compute on a host, against the float64 oracle, in a workspace
/// that holds what another call left. Warps and copies run in an order of test_seed()'s, or in the same one each time
/// where a fault is planted, which may show in some alone.
CheckReport check_emulated(const checking::CheckCase& test, const ProblemInputs& inputs, const ShapeOf& shape_of,
                           const EmulatedFaults& faults = {});

}  // namespace scoremod::test
