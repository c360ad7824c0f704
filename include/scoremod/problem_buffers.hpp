#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "scoremod/call.hpp"
#include "scoremod/export.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/problem.hpp"
#include "scoremod/tensors.hpp"

namespace scoremod {

/// The inputs of one problem's calls, without the calls' own outputs.
struct InputBuffers {
  ConstBuffer q, k, v, d_o;
  std::vector<OperandBuffer> operands;
};

/// Memory that they write.
struct OutputBuffers {
  Buffer o, lse, dq, dk, dv;
  std::vector<OperandGradient> d_operands;
  Buffer max_logit = {};
  Buffer amax_o = {};
  Buffer amax_dq = {}, amax_dk = {}, amax_dv = {};
};

/// Pointers to the inputs. They point into `inputs`.
SCOREMOD_API InputBuffers buffers_of(const ProblemInputs& inputs);

/// The arguments of a call on this memory. A backward reads the o and lse that the forward wrote.
SCOREMOD_API ForwardArgs forward_args(const InputBuffers& inputs, const OutputBuffers& outputs,
                                      const CallOptions& options = {});
SCOREMOD_API BackwardArgs backward_args(const InputBuffers& inputs, const OutputBuffers& outputs,
                                        const CallOptions& options = {});

/// One tensor that the calls of a problem write.
struct OutputTensor {
  /// "o", "lse", "max_logit", "amax_o", "dq", "dk", "dv", "amax_dq", "amax_dk", "amax_dv", or "d_" and an operand's
  /// name
  std::string name;
  TensorInfo tensor;  ///< name and shape of the tensor itself: "q" for dq, "lse" for max_logit
  std::vector<std::byte> bytes;
};

/// Host memory for everything that the calls of one problem write, and the arguments that bind it with given inputs.
class SCOREMOD_API ProblemBuffers {
 public:
  /// Outputs of a valid problem: o, and lse, max_logit and amax_o as it wants them. With backward also dq, dk, dv,
  /// their largest magnitudes if it wants them, and the gradient of each operand that has one. Every byte is 0xff,
  /// which is NaN in every float dtype, so that an unwritten element shows. `inputs` must outlive this.
  ProblemBuffers(const AttentionProblem& problem, InputBuffers inputs);

  /// Valid as long as this is, and not moved.
  ForwardArgs forward(const CallOptions& options = {});
  BackwardArgs backward(const CallOptions& options = {});

  /// In the order named above.
  const std::vector<OutputTensor>& outputs() const { return outputs_; }
  /// The bytes of all inputs and outputs together.
  std::size_t bytes() const;

 private:
  OutputBuffers output_buffers();

  InputBuffers inputs_;
  std::vector<OutputTensor> outputs_;
};

}  // namespace scoremod
