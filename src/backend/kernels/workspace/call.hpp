#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/plan.hpp"
#include "base/canonical_bytes.hpp"
#include "compiler/compiled_problem.hpp"
#include "masks/mask_class.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

namespace device {
using std::size_t;
#include "backend/kernels/shared/memory.cuh"
}  // namespace device

/// The tensor maps of q, k, v, d_o and a TMA-loaded bias, or v^T of FP8, as the driver writes them. Hopper kernels take
/// them before the other arguments (hopper/tiles.cuh).
struct TensorMaps {
  static constexpr std::size_t kBytes = 128, kCount = 5;
  std::byte bytes[kCount][kBytes];
};

/// The rows that one TMA load brings, in the maps and in hopper/tiles.cuh: 32, or as many as lie in one page.
int box_rows_of(const AttentionProblem& problem);
/// Whether TMA can load k and v: their pages, if any, hold whole boxes of so many rows.
bool pages_hold_boxes(const AttentionProblem& problem);

/// More operands than this would make the kernels' argument larger than the 4 KiB that a parameter may have.
inline constexpr std::size_t kMaxOperands = 35;

/// The arguments of every kernel of one direction, except for the places in the call's workspace. They are the bytes of
/// an AttentionArguments and of one OperandArgument for each operand, or an empty one if there is none. There is room
/// for TensorMaps before them. A launch copies all of the kernel's struct, up to a multiple of its alignment. The
/// memory here goes as far.
class ArgumentBytes {
 public:
  explicit ArgumentBytes(const AttentionProblem& problem);

  TensorMaps& maps() { return *reinterpret_cast<TensorMaps*>(bytes()); }
  device::AttentionArguments& call() {
    return *reinterpret_cast<device::AttentionArguments*>(bytes() + sizeof(TensorMaps));
  }
  device::OperandArgument& operand(std::size_t number);
  /// Lets v and o begin at this dim of theirs.
  void begin_values_at(int dim);
  /// From the maps on, or without them; both up to end().
  const std::byte* mapped() const { return reinterpret_cast<const std::byte*>(blocks_.data()); }
  const std::byte* data() const { return mapped() + sizeof(TensorMaps); }
  const std::byte* end() const { return mapped() + blocks_.size() * sizeof(Block); }

 private:
  /// Aligned as a tensor map is, and with it the largest struct of a kernel.
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  std::byte* bytes() { return reinterpret_cast<std::byte*>(blocks_.data()); }

  std::vector<Block> blocks_;
  std::int64_t value_bytes_, output_bytes_;  ///< of an element of v, and of o
  int first_value_ = 0;
  bool aligned_values_ = false, aligned_outputs_ = false;  ///< at dim 0
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

/// The facts of a problem that decide which branches of a text run: with the text, they are a structural key.
using Branches = std::array<bool, 10>;
Branches branches_of(const AttentionProblem& problem);
void write_branches(CanonicalWriter& out, const Branches& branches);

/// One kernel of a call. Its only parameter is the call's ArgumentBytes, with their maps where it is `mapped`.
struct KernelLaunch {
  std::string kernel;
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
  bool mapped = false;
  int first_value = 0;  ///< the dim of v and o where the kernel's begin

  /// The parameter's bytes, until the next launch's are asked for.
  const std::byte* parameter(ArgumentBytes& argument) const {
    argument.begin_values_at(first_value);
    return mapped ? argument.mapped() : argument.data();
  }
};

/// Whether a mapped kernel can load tensors that have no tensor map only slowly, or as well by cp.async; or whether it
/// needs none of the maps.
enum class Maps : std::uint8_t { kExpected, kOptional, kUnused };

/// How much L2 asks memory for when a TMA box lacks part of it (bench/NOTES.md).
enum class CacheLines : std::uint8_t { k128Bytes, k256Bytes };

/// The launches of every call of a plan, in order, and the memory that they share beside the call's tensors.
class CallLayout {
 public:
  int query_tiles = 0, key_tiles = 0;            ///< of a sequence of the longest length
  int query_work_tiles = 0, key_work_tiles = 0;  ///< of a head in all sequences
  int heads_together = 1;                        ///< heads whose tiles CTAs take in turns
  int splits = 1;                                ///< split-KV: CTAs that share the keys of a head
  int blocks = 0;                                ///< CTAs of a persistent kernel, or those at once of heads in turns
  bool tags_calls = false;                       ///< a call has an id, which tags counters that nobody clears
  std::optional<std::uint32_t> loaded_bias;      ///< the bias that TMA loads
  CacheLines cache_lines = CacheLines::k256Bytes;
  Maps maps = Maps::kExpected;

  void add_launch(KernelLaunch launch) { launches_.push_back(std::move(launch)); }
  /// Adds a piece of a call's workspace, and has the arguments' pointer point to it.
  template <class Value>
  void add_workspace(Value* device::AttentionArguments::*pointer, std::size_t bytes) {
    workspace_.add(bytes, [pointer](ArgumentBytes& to, std::byte* at) { to.call().*pointer = as<Value>(at); });
  }
  /// Adds a piece for v^T, for so many keys of each batch and KV head, and has `copied` of the arguments describe it.
  void add_transposed_values(const AttentionProblem& problem, std::int64_t keys);
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

/// The calls of one plan: everything but a device.
class KernelCall {
 public:
  KernelCall(const compiler::CompiledProblem& problem, Direction direction, CallLayout layout);

  const AttentionProblem& problem() const { return problem_; }
  const std::vector<KernelLaunch>& launches() const { return layout_.launches(); }
  CacheLines cache_lines() const { return layout_.cache_lines; }
  Maps maps() const { return layout_.maps; }
  /// Whether a kernel takes tensor maps that it uses.
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
