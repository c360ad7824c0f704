#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/kernels/workspace/call_layout.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The calls of one plan: everything but a device.
class KernelCall {
 public:
  KernelCall(const compiler::CompiledProblem& problem, Direction direction, CallLayout layout);

  const AttentionProblem& problem() const { return problem_; }
  const std::vector<KernelLaunch>& launches() const { return layout_.launches(); }
  CacheLines cache_lines() const { return layout_.cache_lines; }
  /// Whether a kernel takes tensor maps.
  bool is_mapped() const;
  /// The size of a workspace that is aligned to 16 bytes.
  std::size_t workspace_bytes() const { return layout_.workspace_bytes(); }

  /// Launches that are made once, and their memory, which stays the caller's; later arguments() point to it.
  const std::vector<KernelLaunch>& launches_once() const { return layout_.launches_once(); }
  std::size_t bytes_once() const { return layout_.bytes_once(); }
  void set_memory_once(void* memory) { once_ = static_cast<std::byte*>(memory); }
  ArgumentBytes arguments_once() const { return common_arguments({}, {}, nullptr); }

  ArgumentBytes arguments(const ForwardTensors& tensors, const CallParameters& parameters, std::byte* workspace) const;
  ArgumentBytes arguments(const BackwardTensors& tensors, const CallParameters& parameters, std::byte* workspace) const;

 private:
  ArgumentBytes common_arguments(const CallParameters& parameters, std::span<const void* const> operands,
                                 std::byte* workspace) const;

  AttentionProblem problem_;
  masks::MaskClass mask_class_;
  std::vector<int> constants_;  ///< of the program, that are arguments
  CallLayout layout_;
  std::byte* once_ = nullptr;
};

}  // namespace scoremod::backend::kernels
