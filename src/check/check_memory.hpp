#pragma once

#include <optional>
#include <vector>

#include "scoremod/problem_buffers.hpp"

#include "backend/memory_space.hpp"
#include "backend/reference/naive_attention.hpp"
#include "check/guarded_buffer.hpp"

namespace scoremod::checking {

/// All memory of a check, guarded, with the inputs in place.
struct CheckMemory {
  /// An odd seed aligns every tensor to one element and no more (or to the alignment of `space`), an even one to 64
  /// bytes. The buffers are on the host; calls get their copies in `space`.
  CheckMemory(const AttentionProblem& problem, const ProblemInputs& inputs, std::uint64_t seed,
              const backend::MemorySpace& space = backend::host_memory());

  /// For a problem with given deltas, after its forward: changes the o of the backward as a gradient of its LSE would.
  /// Each row's delta is then off by up to |d_o|. `completed` is the problem with its implied operands.
  void give_deltas(const AttentionProblem& completed, std::uint64_t seed, const backend::MemorySpace& space);

  ForwardArgs forward_args(const CallOptions& options);
  /// Wants every gradient that an operand has.
  BackwardArgs backward_args(const CallOptions& options);
  /// Valid until the next call.
  backend::reference::InputTensors reference_inputs();

  std::vector<GuardedBuffer*> all();
  void send();
  void fetch();

  GuardedBuffer q, k, v, d_o, o, lse, dq, dk, dv;
  std::optional<GuardedBuffer> max_logit, amax_o;   ///< where the problem wants them
  std::vector<GuardedBuffer> amax_gradients;        ///< of dq, dk and dv; likewise
  std::optional<GuardedBuffer> given_o;             ///< the backward's o, after give_deltas()
  std::vector<GuardedBuffer> operands, d_operands;  ///< in the order of the declarations
  std::vector<std::uint32_t> with_gradient;         ///< problem::operands_with_gradient()

 private:
  /// A problem with its implied operands.
  struct Completed {
    AttentionProblem problem;
  };
  CheckMemory(const Completed& completed, const ProblemInputs& inputs, std::uint64_t seed,
              const backend::MemorySpace& space);

  InputBuffers inputs() const;
  OutputBuffers outputs();

  std::vector<const void*> operand_data_;
};

}  // namespace scoremod::checking
