#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.hpp"

namespace scoremod::backend::cuda {

/// The cost of some operand gradients in a pass of their own.
struct OperandGradientCost {
  std::size_t workspace_bytes = 0;
  std::int64_t products = 0;  ///< matrix products that cuBLAS is called for
  std::int64_t blocks = 0;    ///< blocks of queries by keys
};

/// The gradients of float operands, with any axes, tables included, in memory that does not grow with seq_q * seq_kv.
/// cuBLAS makes S = scale Q K^T and dP = dO V^T for one block of queries and keys after the other. A kernel generated
/// from the program's derivative then makes P = exp(score' - LSE) and the upstream gradient P (dP - rowsum(O dO)). From
/// it come each operand's contributions, summed in float32.
///
/// Immutable: several threads may execute it at once, each with its own workspace. It must outlive the work that it
/// enqueued and every CUDA graph that captured it.
class OperandGradients {
 public:
  /// Why the pass cannot run this problem; empty when it can. Needs no device.
  static std::vector<UnsupportedReason> unsupported_reasons(const compiler::CompiledProblem& problem);
  /// The cost of build()'s pass at each execution. Needs no device.
  static OperandGradientCost cost(const compiler::CompiledProblem& problem, std::span<const std::uint32_t> operands);

  /// For the device that is current. `operands` are numbers of float operands of the program, each once, in ascending
  /// order. Throws Error: kUnsupported with unsupported_reasons(), kEnvironment with the text of the loader, NVRTC, the
  /// driver or cuBLAS.
  static std::unique_ptr<const OperandGradients> build(const compiler::CompiledProblem& problem,
                                                       std::span<const std::uint32_t> operands);

  /// The structure that a trial on a device verifies: structure_of_gradients() of these operands. Needs no device.
  static Bytes structure(const compiler::CompiledProblem& problem, std::span<const std::uint32_t> operands);

  virtual ~OperandGradients() = default;

  /// As of cost().
  virtual std::size_t workspace_bytes() const = 0;
  /// Enqueues the pass on parameters.stream of its device. Reads q, k, v, o, lse, d_o and the operands. Overwrites
  /// tensors.d_operands[i] for each operand i that it was built for, unless that pointer is null; nothing else. All are
  /// device pointers, and so is `workspace`, aligned to 64 bytes. It neither allocates nor waits and may be captured
  /// into a CUDA graph. The exception is a thread's first call on a device, which makes its cuBLAS handle.
  virtual void execute(const BackwardTensors& tensors, const CallParameters& parameters,
                       std::span<std::byte> workspace) const = 0;
};

/// For a verdict's notes, such as "gradient of 'slopes' by a pass of its own: 256 products by cuBLAS, workspace 66
/// MiB".
std::string describe(const compiler::CompiledProblem& problem, std::span<const std::uint32_t> operands);

}  // namespace scoremod::backend::cuda
