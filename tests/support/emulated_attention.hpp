#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/check.hpp"

#include "check/check_case.hpp"
#include "support/emulated_device.hpp"

namespace scoremod::test {

/// The shape of a direction's kernels.
using ShapeOf = std::function<backend::kernels::AnyShape(const AttentionProblem&, backend::Direction)>;

struct EmulatedFaults {
  EmulatedLaunches::Fault forward = {}, backward = {};
  EmulatedLaunches::Fault of_both = {};  ///< in both directions' texts, beside them

  bool planted() const { return !forward.first.empty() || !backward.first.empty(); }
};

/// Runs the attention kernels of a problem's directions on a host, against the float64 oracle, in a workspace with
/// another call's contents. CTAs, warps and copies run in an order by test_seed(). With a planted fault, which may show
/// in some orders alone, the order is fixed.
CheckReport check_emulated(const checking::CheckCase& test, const ProblemInputs& inputs, const ShapeOf& shape_of,
                           const EmulatedFaults& faults = {});

/// The bits of O, LSE and the largest score of a forward in this shape, for each of some inputs. `seed` is that of the
/// order in which CTAs, warps and copies run. A call runs `times` with unchanged arguments, as in a graph. Operands may
/// hold values that calls on a host refuse.
std::vector<std::uint64_t> emulated_forward_bits(const checking::CheckCase& test,
                                                 const std::vector<ProblemInputs>& inputs,
                                                 const backend::kernels::AnyShape& shape, unsigned seed, int times = 1,
                                                 const EmulatedLaunches::Fault& fault = {});

/// Outputs in dense order, and a description of a write where there is no element, if there was one.
struct EmulatedOutputs {
  std::vector<double> o, lse, max_logit, dq, dk, dv;  ///< empty where the problem has none
  std::optional<std::string> damage;
};

/// Runs the directions of a problem. All outputs were NaN before. Operands may hold values that calls on a host refuse.
EmulatedOutputs emulated_outputs(const checking::CheckCase& test, const ProblemInputs& inputs, const ShapeOf& shape_of,
                                 const EmulatedFaults& faults = {});

}  // namespace scoremod::test
