#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/candidate_key.hpp"
#include "backend/device_properties.hpp"
#include "backend/memory_space.hpp"
#include "backend/plan.hpp"
#include "backend/target_context.hpp"
#include "base/bytes.hpp"

namespace scoremod::compiler {
struct CompiledProblem;
}

namespace scoremod::backend {

/// The part of a problem that one plan computes.
struct Task {
  Direction direction = Direction::kForward;
  bool attention = true;                         ///< backward: writes dq, dk and dv; else the operands' gradients alone
  std::vector<std::uint32_t> operand_gradients;  ///< backward: the operands whose gradients it writes, ascending
  /// The engine that the backend's library must take, by Artifact::library_engine(); empty: the one that it chooses.
  std::string library_engine = {};

  bool operator==(const Task&) const = default;
};

/// The device that plans are to run on.
struct Target {
  DeviceProperties device;
  int ordinal = 0;        ///< of the device, where it is here
  TargetContext context;  ///< where it is here
  bool present = true;    ///< false: the device is elsewhere; plans for it can be built and not run
};

/// How long a candidate will take, and where that is known from.
struct Prediction {
  double milliseconds = 0;
  std::string source;  ///< such as "measured patterns, scaled by the mask's work"
};

/// The result of building a plan: it can be stored, and serves every problem with the same plan key.
class Artifact {
 public:
  virtual ~Artifact() = default;
  /// For Recipe::load(); the same bytes whether it was built or loaded.
  virtual std::vector<std::byte> serialize() const = 0;
  /// Device memory that it needs by itself.
  virtual std::size_t workspace_bytes() const { return 0; }
  /// The engine that the backend's library chose by the problem's sizes, by the library's name. A trial takes the same.
  /// Empty where nothing is chosen so.
  virtual std::string library_engine() const { return {}; }
  /// The engines that the library would take next, best first. One of them may need less memory.
  virtual std::vector<std::string> next_library_engines() const { return {}; }
};

/// The outcome of a build: an artifact, or the backend's words of refusal. Any other failure is thrown.
struct BuildResult {
  std::shared_ptr<const Artifact> artifact;
  std::string refusal;
};

/// The plan that runs: the forward, or the backward (of the task's outputs).
struct ExecutablePlan {
  std::shared_ptr<const ForwardPlan> forward;
  std::shared_ptr<const BackwardPlan> backward;
  std::string note;  ///< its parts, for people

  std::size_t workspace_bytes() const { return forward ? forward->workspace_bytes() : backward->workspace_bytes(); }
};

/// How to make a candidate run. Immutable; keeps all that it needs.
class Recipe {
 public:
  virtual ~Recipe() = default;
  /// Builds for a device that need not be here. Throws Error(kEnvironment) if the build fails for a reason other than
  /// missing support by the backend.
  virtual BuildResult build(const Target& target) const = 0;
  /// From serialize()'s bytes, for a device that is here. Throws Error where they are damaged or of another kind.
  virtual std::shared_ptr<const Artifact> load(std::span<const std::byte> bytes, const Target& target) const = 0;
  /// Ready to run on the target, which is here.
  virtual ExecutablePlan plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const = 0;
  /// Whether build() and load() need the target's context if it is here, to which their results then belong. Otherwise
  /// an artifact serves all devices of the target's kind, and is built while the context is being made.
  virtual bool needs_context() const { return true; }
  /// A plan of the same artifact for a problem of this structure at other sizes, without a note. It runs on the device,
  /// which is here and of the target's kind. Nothing where those sizes want another artifact, and where the backend
  /// makes one for each size.
  virtual std::optional<ExecutablePlan> plan_at_sizes_of(const compiler::CompiledProblem&, const DeviceProperties&,
                                                         const Artifact&, const PlanOptions&) const {
    return std::nullopt;
  }
  /// plan() by as few blocks as its kernels work with, for a trial. A small problem that a whole device shares out
  /// leaves each block too little to show what it does with much. Nothing where the problem decides how many there are.
  virtual std::optional<ExecutablePlan> plan_on_few_blocks(const Artifact&) const { return std::nullopt; }
};

/// A piece of a candidate, and the measured time of attention with it alone.
struct CandidatePart {
  std::string name;
  std::optional<double> milliseconds;  ///< absent where it was not timed
};

/// One way of a backend to do a task: plain data, and a recipe.
struct Candidate {
  Task task;
  /// The key of verifications on the device: two candidates of equal keys are both right or both wrong with the same
  /// engine of a library (Artifact::library_engine()). Empty for the host's backends, which need none because
  /// verification relies on them.
  CandidateKey structural_key;
  /// The engine, by Artifact::library_engine(), of which the library ships the knowledge that candidates of this key
  /// are right on this device; nothing without such knowledge.
  std::optional<std::string> known_right;
  /// Whose artifacts are interchangeable; empty where there is nothing to keep.
  CandidateKey plan_key;
  /// All that a refusal to build follows from, the compiler's version too, so that other processes need not try. Empty
  /// where it may follow from something else.
  CandidateKey refusal_key;
  std::string label;  ///< such as "forward bf16 b4 h16 s4096x4096 d128", for the store's files
  Prediction predicted;
  /// Why it comes behind other backends' candidates unless the caller orders the backends; empty: predicted times
  /// decide.
  std::string behind_others = {};
  std::optional<std::size_t> workspace_bytes;  ///< where it is known before a build
  bool any_operand_gradients = false;  ///< backward: it also writes whichever operands' gradients a call asks for
  // Texts and numbers that explain shows.
  std::vector<std::string> notes;  ///< the parts of the plan, and its unknowns
  std::vector<CandidatePart> parts;
  std::optional<double> base_milliseconds;  ///< the time of attention without a program where the parts were timed
  std::string
      parts_seen_on;      ///< where the parts were seen to be right, where that is not this architecture and version
  std::size_t nodes = 0;  ///< of the program, inside the backend's kernel
  std::size_t computed_operands = 0;  ///< tensors computed before it runs
  std::shared_ptr<const Recipe> recipe;
};

}  // namespace scoremod::backend
