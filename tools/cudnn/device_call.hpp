#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "scoremod/inputs.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/device.hpp"
#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/lowering/lower.hpp"

namespace scoremod::explorer {

/// A lowered problem and the buffers of its call.
struct PreparedCall {
  compiler::CompiledProblem compiled;
  backend::cudnn::LoweredModifier modifier;
  backend::Direction direction = backend::Direction::kForward;
  IndexOffsets offsets;
  std::optional<std::uint32_t> operand_gradient{};  ///< as in backend::cudnn::PlanTask
  bool zero_computed = false;  ///< leave computed operands zero: for times, which do not depend on them
};

/// Everything of one call on the device. By-value tensors stay on the host, and computed operands are computed there,
/// by the reference interpreter in float32.
class DeviceCall {
 public:
  /// `prepared` must outlive the call.
  DeviceCall(const PreparedCall& prepared, const ProblemInputs& inputs);

  void upload(backend::cudnn::Uid uid, const std::vector<std::byte>& bytes);
  /// An output filled with NaN, so that an unwritten element shows.
  void output(backend::cudnn::Uid uid, std::size_t bytes);
  void execute(const backend::cudnn::EnginePlan& plan);
  std::vector<std::byte> download(backend::cudnn::Uid uid) const;

 private:
  void bind_modifier_tensor(const PreparedCall& prepared, const ProblemInputs& inputs, std::size_t number);

  float scale_;
  IndexOffsets offsets_;
  std::unordered_map<std::int64_t, void*> pointers_;
  std::unordered_map<std::int64_t, backend::cuda::DeviceMemory> memories_;
  std::optional<backend::cuda::DeviceMemory> workspace_;
};

/// The values of a computed operand, dense in the order of its axes. With `diagonal` there is one for each difference
/// kv - q, from the smallest, in place of one for each (q, kv).
std::vector<std::byte> compute_operand(const PreparedCall& prepared, const ProblemInputs& inputs,
                                       const backend::cudnn::ComputedOperand& operand, bool diagonal);

}  // namespace scoremod::explorer
