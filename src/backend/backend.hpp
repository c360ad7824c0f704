#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/memory_space.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend {

/// Up to here half of float32's spacing, 2^-17, is about what a sum of some hundreds of weights loses to rounding.
inline constexpr float kLargestReadLse = 256;

enum class Direction { kForward, kBackward };

/// Checked pointers of one call. The executor has validated every size; operands are in the order of the program's
/// declarations.
struct ForwardTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  std::span<const void* const> operands;
  void* o = nullptr;
  float* lse = nullptr;  ///< null when not wanted
};

struct BackwardTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  const float* lse = nullptr;
  const void* d_o = nullptr;
  std::span<const void* const> operands;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  std::span<void* const> d_operands;  ///< one per operand; null where not wanted
};

/// What may differ from call to call.
struct CallParameters {
  float scale = 1;
  IndexOffsets offsets;
  void* stream = nullptr;
};

/// Runs one direction of one problem. Immutable: several threads may execute it at once, each with its own workspace.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual std::size_t workspace_bytes() const = 0;
};

class ForwardPlan : public Plan {
 public:
  virtual void execute(const ForwardTensors& tensors, const CallParameters& parameters,
                       std::span<std::byte> workspace) const = 0;
};

class BackwardPlan : public Plan {
 public:
  virtual void execute(const BackwardTensors& tensors, const CallParameters& parameters,
                       std::span<std::byte> workspace) const = 0;
};

/// Whether a backend can run a problem, with every reason why not.
struct Verdict {
  bool supported = true;
  std::vector<std::string> reasons;
  std::vector<std::string> notes;  ///< how it would run and what that costs, where that is not plain
};

struct PlanOptions {
  int threads = 0;  ///< 0: one for each core
};

/// A way to run problems. Stateless.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual const MemorySpace& memory() const { return host_memory(); }
  /// By how much the backend's exp, tanh, pow and the like may miss float32's own rounding, relative to the larger one
  /// of 1 and the result.
  virtual double function_error() const { return 0; }
  /// Whether the backward computes weights from the forward's LSE, and so is no better than its rounding. One that says
  /// no may still do so where |LSE| is below kLargestReadLse.
  virtual bool backward_reads_lse() const { return true; }
  virtual Verdict support(const compiler::CompiledProblem& problem) const = 0;
  virtual std::unique_ptr<ForwardPlan> plan_forward(const compiler::CompiledProblem& problem,
                                                    const PlanOptions& options) const = 0;
  virtual std::unique_ptr<BackwardPlan> plan_backward(const compiler::CompiledProblem& problem,
                                                      const PlanOptions& options) const = 0;
};

/// Every backend in the order of preference; the last is the reference. Defined in registry.cpp, which alone names
/// backends.
std::span<const Backend* const> backends();
/// The backend of this name; throws Error(kInvalidArgument) that lists the names when there is none.
const Backend& find_backend(const std::string& name);

}  // namespace scoremod::backend
