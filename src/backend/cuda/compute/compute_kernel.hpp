#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/problem.hpp"

namespace scoremod::backend::cuda {

/// A node that depends neither on the score nor on the upstream gradient, as a dense tensor. It has the problem's sizes
/// along `axes` (in the order b, h, q, kv; h counts query heads) and 1 along the others. f32 for Type::kF32, i32 for
/// kI32, and i32 0 or 1 for kBool.
struct NodeTensor {
  NodeId node = kNoNode;
  std::array<bool, kAxisCount> axes{};  ///< at least those that the node varies along
  Type type = Type::kF32;

  bool operator==(const NodeTensor&) const = default;
};

/// Bytes of the tensor; every element takes 4.
std::size_t bytes_of(const NodeTensor& tensor, const AttentionProblem& problem);

/// A kernel, generated from a program and compiled for the device that is current at build(), that computes several of
/// its nodes in one launch. Immutable: several threads may execute it at once. It must outlive the work that it
/// enqueued and every CUDA graph that captured it.
class ComputeKernel {
 public:
  /// Why no kernel can be built for these nodes; empty when one can. Needs no device.
  static std::vector<std::string> unsupported_reasons(const AttentionProblem& problem, const Program& program,
                                                      std::span<const NodeTensor> tensors);

  /// `program` is the problem's, or one made from it (same operands). Throws Error: kUnsupported with
  /// unsupported_reasons(), kEnvironment with the text of the loader, NVRTC or the driver.
  static std::unique_ptr<const ComputeKernel> build(const AttentionProblem& problem, const Program& program,
                                                    std::span<const NodeTensor> tensors);

  virtual ~ComputeKernel() = default;

  /// Enqueues the kernel on a stream of its device. Device pointers: `operands` in the order of the program's
  /// declarations (those that no node reads may be null), `outputs` in the order of the tensors. The call's offsets are
  /// added to the nodes' indices. Allocates nothing and waits for nothing; may be captured into a CUDA graph.
  virtual void execute(std::span<const void* const> operands, std::span<void* const> outputs,
                       const IndexOffsets& offsets, void* stream) const = 0;
};

}  // namespace scoremod::backend::cuda
