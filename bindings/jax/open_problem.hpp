#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "scoremod/open_attention.hpp"

#include "attention_state.hpp"
#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

/// A problem whose batch and lengths come with each call. Its JSON has null in their place, and in shapes of operands.
class OpenProblem {
 public:
  /// `first_operand` is the number of the call's buffer that is the first operand's. Throws
  /// Error(kInvalidArgument) for text that is no such problem, and where heads or a table's blocks are open.
  OpenProblem(const std::string& problem, std::size_t first_operand);

  const AttentionProblem& problem() const { return problem_; }

  /// The open sizes that these buffers have. Throws Error(kInvalidArgument) where two buffers disagree, and where a
  /// size is 0.
  Sizes sizes_of(const xla::ffi::RemainingArgs& arguments) const;

 private:
  /// A dimension of one of a call's buffers.
  struct Dimension {
    std::size_t argument;
    std::size_t dimension;
    std::string name;  ///< the buffer's
  };
  struct OpenSize {
    std::int64_t Sizes::*size;
    std::string name;
    std::vector<Dimension> said_by;  ///< each has the size
  };
  /// An operand with open extents, in the argument of this number.
  struct OpenOperand {
    std::size_t argument;
    std::string name;
    std::size_t rank;
  };

  void find_sizes();
  void find_operands(std::size_t first_operand);

  AttentionProblem problem_;
  std::vector<OpenSize> open_;
  std::vector<OpenOperand> operands_;
};

/// One custom call with open sizes keeps the state of calls of the sizes that it has seen last. An XLA program has its
/// sizes when it is compiled, so that it sees no others.
class AnySizeState {
 public:
  AnySizeState(const std::string& problem, CompileOptions options, std::size_t first_operand);

  /// The state of calls with these buffers, prepared on the device. Throws Error.
  std::shared_ptr<const AttentionState> prepared(const xla::ffi::RemainingArgs& arguments, int device);

 private:
  /// The problem compiled for all sizes on the options' device, once for each device.
  const OpenAttention& on_device(const CompileOptions& options);

  const OpenProblem problem_;
  const CompileOptions options_;
  std::mutex mutex_;  ///< devices run their parts of a program in threads of their own
  std::map<int, OpenAttention> by_device_;
  Sizes sizes_;
  std::shared_ptr<AttentionState> state_;
};

}  // namespace scoremod::jax
