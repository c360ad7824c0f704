#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/candidate.hpp"
#include "backend/forward_rounding.hpp"
#include "backend/memory_space.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend {

/// Up to here half of float32's spacing, 2^-17, is about the rounding error of a sum of some hundreds of weights.
inline constexpr float kMaxReadLse = 256;

/// A way to run problems, on a device or by the host's code. It lists candidates; the planner (src/planner) chooses,
/// builds, verifies and stores, for all backends alike. Stateless.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual const MemorySpace& memory() const { return host_memory(); }
  /// The error of the backend's exp, tanh, pow and the like beyond float32's own rounding, relative to the larger of 1
  /// and the result.
  virtual double function_error() const { return 0; }
  /// By how much its products of two float32 numbers may miss float32's own rounding, relatively.
  virtual double product_error() const { return 0; }
  /// How coarse the forward's scores and weights of a problem may be.
  virtual ForwardRounding forward_rounding(const compiler::CompiledProblem&) const { return {}; }
  /// Whether the backward computes weights from the forward's LSE, and so is no better than its rounding. One that says
  /// no may still do so where |LSE| is below kMaxReadLse.
  virtual bool backward_reads_lse() const { return true; }
  /// The backend's text in the store's files: its name, and the version of the library behind it.
  virtual std::string engine_text() const { return name(); }
  /// Whether a plan runs only after a trial that kept keys has shown it right. A library that chooses its engine by the
  /// program wants that; kernels whose text every program shares do not.
  virtual bool runs_only_shown() const { return false; }
  /// Whether it offers parts of a backward only, and so belongs to whatever is selected in its memory.
  virtual bool is_companion() const { return false; }
  /// Whether the backend offers tasks of this kind at all; it gives no reasons against others.
  virtual bool offers(const Task& task) const { return task.attention != is_companion(); }

  /// Loads a stub for the driver, if plans are to be built for a device elsewhere and this machine has none. Throws
  /// Error(kEnvironment).
  virtual void prepare_building_elsewhere() const {}
  /// The properties of the current device as building elsewhere takes them; empty where this backend cannot say.
  virtual std::string device_properties_here() const { return {}; }

  /// Whether a plan for a problem serves all problems that differ from it in sizes alone.
  virtual bool serves_all_sizes() const { return false; }
  /// Whether it builds one plan at a time, so that processes of their own build several of them sooner.
  virtual bool builds_in_turn() const { return false; }
  /// The folders in which such a process finds the libraries that this one has.
  virtual std::vector<std::string> library_folders() const { return {}; }

  /// Every reason against a task that is known before anything is lowered or built, without a device. Without a
  /// `target` they follow from the problem alone, else also from the target's architecture. Builds and tries nothing.
  virtual std::vector<UnsupportedReason> objections(const compiler::CompiledProblem& problem, const Task& task,
                                                    const Target* target) const = 0;
  /// The ways to do a task to which objections() has none, each once, and why there are no more. Builds and tries
  /// nothing, and needs no device.
  virtual std::vector<Candidate> candidates(const compiler::CompiledProblem& problem, const Task& task,
                                            const Target& target, std::vector<UnsupportedReason>& reasons) const = 0;
  /// The sets of operands (ascending) whose gradients some candidates write with dq, dk and dv. `notes` says why others
  /// are not among them, if that is worth saying.
  virtual std::vector<std::vector<std::uint32_t>> fused_operand_gradients(const compiler::CompiledProblem&,
                                                                          const Target&,
                                                                          std::vector<std::string>& /*notes*/) const {
    return {};
  }
};

/// Every backend; the last is the reference. Defined in registry.cpp, which alone names backends.
std::span<const Backend* const> backends();
/// The backend of this name; throws Error(kInvalidArgument) that lists the names, or kUnsupported if is_left_out().
const Backend& find_backend(const std::string& name);
/// Finds companions too, which only another process of the library asks for by name.
const Backend& find_engine(const std::string& name);

}  // namespace scoremod::backend
