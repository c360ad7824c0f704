#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "attention_state.hpp"
#include "nlohmann/json.hpp"
#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

/// A problem whose batch and lengths come with each call. Its JSON has null in their place, and in shapes of operands.
class OpenProblem {
 public:
  /// `first_operand` is the number of the call's buffer that is the first operand's. Throws
  /// Error(kInvalidArgument) for text that is no such problem, and for null in another place.
  OpenProblem(const std::string& problem, std::size_t first_operand);

  /// The open sizes that these buffers have, in an order of its own. Throws Error(kInvalidArgument) where two buffers
  /// disagree, and where a size is 0.
  std::vector<std::int64_t> sizes_of(const xla::ffi::RemainingArgs& arguments) const;

  /// The problem's JSON with these sizes.
  std::string with_sizes(const std::vector<std::int64_t>& sizes) const;

 private:
  /// A dimension of one of a call's buffers.
  struct Dimension {
    std::size_t argument;
    std::size_t dimension;
    std::string name;  ///< the buffer's
  };
  struct OpenSize {
    nlohmann::json::json_pointer place;
    std::string name;
    std::vector<Dimension> said_by;  ///< each has the size
  };

  void find_sizes();
  void find_extents(std::size_t first_operand);
  void refuse_other_nulls() const;

  nlohmann::json problem_;
  std::vector<OpenSize> open_;
};

/// One custom call with open sizes keeps the state of calls of the sizes that it has seen last. An XLA program has its
/// sizes when it is compiled, so that it sees no others.
class AnySizeState {
 public:
  AnySizeState(const std::string& problem, CompileOptions options, std::size_t first_operand);

  /// The state of calls with these buffers, prepared on the device. Throws Error.
  std::shared_ptr<const AttentionState> prepared(const xla::ffi::RemainingArgs& arguments, int device);

 private:
  const OpenProblem problem_;
  const CompileOptions options_;
  std::mutex mutex_;  ///< devices run their parts of a program in threads of their own
  std::vector<std::int64_t> sizes_;
  std::shared_ptr<AttentionState> state_;
};

}  // namespace scoremod::jax
