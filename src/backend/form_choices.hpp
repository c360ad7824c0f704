#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.hpp"

namespace scoremod::backend {

/// A way to write something for cuDNN, and what attention with it alone took when the table of forms was made.
struct FormCost {
  std::string form;
  std::optional<double> milliseconds;  ///< absent where it was not timed
};

/// One lowering of one direction.
struct FormCandidate {
  std::vector<FormCost> forms;
  std::size_t nodes = 0;                       ///< of the modifier's graph
  std::size_t computed_operands = 0;           ///< computed before cuDNN runs
  bool chosen = false;                         ///< the one that runs, as far as that can be known here
  bool asked = false;                          ///< cuDNN was asked to build it
  std::optional<std::size_t> workspace_bytes;  ///< of cuDNN's plan, where it was built
  std::string refusal;                         ///< why it can't run, where that is known
};

/// How one direction of a problem can be written, the fastest forms first.
struct DirectionForms {
  Direction direction = Direction::kForward;
  std::string architecture;
  /// The forms were seen to be right on this architecture with this cuDNN; else nothing runs before a trial admits it.
  bool verified = false;
  std::string seen_on;                       ///< where they were seen to be right, and timed: "sm_90 with cuDNN 9.19.0"
  std::optional<double> plain_milliseconds;  ///< without a modifier
  std::vector<FormCandidate> candidates;
  std::vector<std::string> reasons;  ///< why there is no candidate, or none with faster forms
};

/// The choices that a backend has for a device with these properties (device_properties_here()'s text), which need not
/// be on this machine: every candidate is built, as plan_ahead() does it, and thrown away. Without a text those of
/// the current device, where only the one that runs is built. Throws as plan_ahead() does. Defined in registry.cpp.
std::vector<DirectionForms> form_choices(const compiler::CompiledProblem& problem,
                                         const std::optional<std::string>& device_properties);

}  // namespace scoremod::backend
