#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/sequences/places_argument.cuh"

namespace scoremod::backend::cudnn {

/// The device pointers of one call: q, k, v and so on by their Uid (up to kUidDBias), operands in the order of the
/// declarations.
struct CallPointers {
  std::array<void*, kUidDBias + 1> attention{};
  std::span<const void* const> operands;
};

/// The text of the kernel.
std::string place_sequences_source();

/// The argument of place_sequences for a direction, and the places of its results. Needs no device.
class PlacesLayout {
 public:
  /// The problem has its implied operands, and sequences that offsets or page tables place.
  PlacesLayout(const AttentionProblem& problem, Direction direction);

  /// The bytes of all results, each of which is aligned to 256.
  std::size_t workspace_bytes() const { return bytes_; }
  /// The place of a Uid's tensor among the results; nothing for a tensor that is none.
  std::optional<std::size_t> place_of(std::int64_t uid) const;
  std::int64_t blocks() const { return blocks_; }
  /// The argument of a call; `workspace` has room for the results.
  PlacesArgument argument(const CallPointers& call, std::byte* workspace) const;

 private:
  struct Result {
    std::int64_t uid = 0;
    std::size_t place = 0;
  };

  void add_sequences(const AttentionProblem& problem, bool of_keys);
  void add_tensors(const AttentionProblem& problem, Direction direction);
  void add_tables(const AttentionProblem& problem);
  std::size_t add_result(std::int64_t uid, std::size_t bytes);

  PlacesArgument filled_{};            ///< all but the pointers
  std::vector<Result> results_;        ///< the lengths' first, then the places' and the tables'
  std::vector<std::int64_t> cleared_;  ///< the Uids of filled_.cleared
  std::array<std::optional<std::uint32_t>, 2> offsets_, tables_;  ///< numbers of operands
  std::optional<std::uint32_t> counts_;                           ///< likewise
  std::size_t bytes_ = 0;
  std::int64_t blocks_ = 1;
};

/// Runs place_sequences in front of one direction's plan, in the context that was current when it was made.
class SequencePlacer {
 public:
  SequencePlacer(const AttentionProblem& problem, Direction direction);

  const PlacesLayout& layout() const { return layout_; }
  /// Enqueues the kernel.
  void execute(const CallPointers& call, std::byte* workspace, void* stream) const;

 private:
  PlacesLayout layout_;
  cuda::KernelModule module_;
  cuda::KernelModule::Kernel kernel_;
};

}  // namespace scoremod::backend::cudnn
