#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "scoremod/attention.hpp"

namespace scoremod::backend {

enum class Direction { kForward, kBackward };

/// Checked pointers of one call. The executor has validated every size; operands are in the order of the program's
/// declarations.
struct ForwardTensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  std::span<const void* const> operands;
  void* o = nullptr;
  float* lse = nullptr;        ///< null when not wanted
  float* max_logit = nullptr;  ///< present where the problem wants it
  float* amax_o = nullptr;     ///< likewise
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
  float* amax_dq = nullptr;           ///< present where the problem wants it, and so are the next two
  float* amax_dk = nullptr;
  float* amax_dv = nullptr;
};

/// Parameters that may differ from call to call.
struct CallParameters {
  float scale = 1;
  IndexOffsets offsets;
  void* stream = nullptr;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;
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

struct PlanOptions {
  int threads = 0;  ///< as cpu_threads() takes them
  /// The target's context, where it is known; else the calling thread's.
  std::optional<std::uint64_t> context = {};
};

}  // namespace scoremod::backend
