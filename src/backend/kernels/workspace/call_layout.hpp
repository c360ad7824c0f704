#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/kernels/workspace/arguments.hpp"

namespace scoremod::backend::kernels {

/// One kernel of a call. Its only parameter is the call's ArgumentBytes, with their maps where it is `mapped`.
struct KernelLaunch {
  std::string kernel;
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
  bool mapped = false;

  const std::byte* parameter(const ArgumentBytes& argument) const {
    return mapped ? argument.mapped() : argument.data();
  }
};

/// How much L2 asks memory for when a TMA box lacks part of it (bench/NOTES.md).
enum class CacheLines : std::uint8_t { k128Bytes, k256Bytes };

/// The launches of every call of a plan, in order, and the memory that they share beside the call's tensors.
class CallLayout {
 public:
  int query_tiles = 0, key_tiles = 0;
  int heads_together = 1;                    ///< heads whose tiles CTAs take in turns
  int splits = 1;                            ///< split-KV: CTAs that share the keys of a head
  int blocks = 0;                            ///< CTAs of a persistent kernel
  bool tags_calls = false;                   ///< a call has an id, which tags counters that nobody clears
  std::optional<std::uint32_t> loaded_bias;  ///< the bias that TMA loads
  CacheLines cache_lines = CacheLines::k256Bytes;

  void add_launch(KernelLaunch launch) { launches_.push_back(std::move(launch)); }
  /// Adds a piece of a call's workspace, and has the arguments' pointer point to it.
  template <class Value>
  void add_workspace(Value* device::AttentionArguments::*pointer, std::size_t bytes) {
    workspace_.add(bytes, [pointer](ArgumentBytes& to, std::byte* at) { to.call().*pointer = as<Value>(at); });
  }
  /// Adds a piece of the workspace for the sums of an operand's gradient, right `behind` the last piece or aligned.
  void add_sums(std::uint32_t operand, std::size_t bytes, bool behind);

  /// Launches whose output, in memory of the plan's own, is the same in every call. A plan runs them once.
  void add_launch_once(KernelLaunch launch) { launches_once_.push_back(std::move(launch)); }
  template <class Value>
  void add_memory_once(Value* device::AttentionArguments::*pointer, std::size_t bytes) {
    once_.add(bytes, [pointer](ArgumentBytes& to, std::byte* at) { to.call().*pointer = as<Value>(at); });
  }

  const std::vector<KernelLaunch>& launches() const { return launches_; }
  std::vector<KernelLaunch>& launches() { return launches_; }
  const std::vector<KernelLaunch>& launches_once() const { return launches_once_; }
  /// Sizes of memory that is aligned to 16 bytes.
  std::size_t workspace_bytes() const { return workspace_.bytes; }
  std::size_t bytes_once() const { return once_.bytes; }

  /// Writes the layout's numbers, and pointers into the memory that is not null.
  void write(ArgumentBytes& to, std::byte* workspace, std::byte* once) const;

 private:
  struct Pieces {
    struct Piece {
      std::size_t at;
      std::function<void(ArgumentBytes&, std::byte*)> point;
    };
    std::vector<Piece> pieces;
    std::size_t bytes = 0;

    void add(std::size_t size, std::function<void(ArgumentBytes&, std::byte*)> point, bool behind = false);
    void write(ArgumentBytes& to, std::byte* memory) const;
  };
  template <class Value>
  static Value* as(std::byte* at) {
    return reinterpret_cast<Value*>(at);
  }

  std::vector<KernelLaunch> launches_, launches_once_;
  Pieces workspace_, once_;
};

}  // namespace scoremod::backend::kernels
