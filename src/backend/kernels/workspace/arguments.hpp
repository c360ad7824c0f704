#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/plan.hpp"
#include "base/canonical_bytes.hpp"
#include "masks/mask_class.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

namespace device {
#include "backend/kernels/shared/arguments.cuh"
}  // namespace device

/// The tensor maps of q, k, v, d_o and a TMA-loaded bias, as the driver writes them. Hopper kernels take them before
/// the other arguments (hopper/tiles.cuh).
struct TensorMaps {
  static constexpr std::size_t kBytes = 128, kCount = 5;
  std::byte bytes[kCount][kBytes];
};

/// The rows that one TMA load brings, in the maps and in hopper/tiles.cuh.
inline constexpr int kHopperBoxRows = 32;

/// More operands than this would make the kernels' argument larger than the 4 KiB that a parameter may have.
inline constexpr std::size_t kMaxOperands = 35;

/// The arguments of every kernel of one direction, except for the places in the call's workspace. They are the bytes of
/// an AttentionArguments and of one OperandArgument for each operand, or an empty one if there is none. There is room
/// for TensorMaps before them.
class ArgumentBytes {
 public:
  explicit ArgumentBytes(const AttentionProblem& problem);

  TensorMaps& maps() { return *reinterpret_cast<TensorMaps*>(bytes_.data()); }
  device::AttentionArguments& call() {
    return *reinterpret_cast<device::AttentionArguments*>(bytes_.data() + sizeof(TensorMaps));
  }
  device::OperandArgument& operand(std::size_t number);
  /// From the maps on, or without them.
  const std::byte* mapped() const { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data() + sizeof(TensorMaps); }

 private:
  alignas(16) std::vector<std::byte> bytes_;
};

/// The arguments of a call of the problem, but for its tensors and places in its workspace; `mask` and
/// the values of cuda::argument_constants() are the direction's.
ArgumentBytes arguments_of(const AttentionProblem& problem, const masks::MaskClass& mask,
                           std::span<const int> constants, const CallParameters& parameters,
                           std::span<const void* const> operands);

/// A tensor of this role, placed by a call's operands; `data` may be null, and there may be no operands, where only the
/// layout matters.
device::TensorArgument tensor_argument(const AttentionProblem& problem, problem::TensorRole role, const void* data,
                                       std::span<const void* const> operands = {});

/// An operand that varies along queries and keys, as a tensor whose rows are its queries and whose dims its keys.
/// Strides are 0 where batches or heads share it; `data` may be null where only the layout matters.
device::TensorArgument copied_argument(const AttentionProblem& problem, std::uint32_t operand, const void* data);

/// Writes the facts of a problem that decide which branches of a text run: with the text, they are a structural key.
void write_branches(CanonicalWriter& out, const AttentionProblem& problem);

}  // namespace scoremod::backend::kernels
