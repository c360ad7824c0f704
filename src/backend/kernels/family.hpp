#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/candidate.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "backend/forward_rounding.hpp"
#include "backend/plan.hpp"
#include "base/bytes.hpp"
#include "base/canonical_bytes.hpp"
#include "base/concat.hpp"
#include "compiler/compiled_problem.hpp"
#include "problem/tensor_view.hpp"

// The seam between the planner and the families of kernels: the backend lists the families, and knows no more of them.
// A variant of a family tells the source of its kernels and the launches of its calls.

namespace scoremod::backend::kernels {

namespace device {
using std::size_t;
#include "backend/kernels/shared/memory.cuh"
}  // namespace device

// Sources of kernels, from .cuh files. A file's #include lines say what it needs, and its holes what a problem puts
// into it. A file may hold several kernels, each in a hole `kernel NAME`: a module has those of them that it names. All
// that kernels ask of a device stands in holes `device NAME`. A host runs them with a text of its own in these.

/// The values of the holes of kernel files: one value for each name, in whichever files holes of this name are.
class Holes {
 public:
  template <class Value>
  void set(std::string_view name, const Value& value) {
    add(name, {concat(value), std::nullopt, std::nullopt});
  }
  /// `structure` takes the text's place in structure_of(): equal for two texts if a trial of one vouches for the other.
  void set_program(std::string_view name, std::string text, Bytes structure) {
    add(name, {std::move(text), std::nullopt, std::move(structure)});
  }
  /// `follows_from` takes the place of a long text that it decides.
  void set_long(std::string_view name, std::string text, Bytes follows_from) {
    add(name, {std::move(text), std::move(follows_from), std::nullopt});
  }

  struct Value {
    std::string text;
    std::optional<Bytes> follows_from, structure;
  };
  /// A hole that nobody has filled is a bug.
  const Value& at(std::string_view name) const;

 private:
  void add(std::string_view name, Value value);

  std::map<std::string_view, Value> values_;  ///< names are literals
};

/// A file of a module, and those of the module's kernels that stand in holes `kernel NAME` of the file. A kernel
/// outside such a hole is there wherever its file is.
struct ModuleFile {
  std::string_view path;
  std::vector<std::string_view> kernels = {};
};
using Module = std::vector<ModuleFile>;

/// The kernels of one plan. NVRTC takes a second or two for each large kernel, so modules are compiled side by side.
struct KernelSource {
  Holes holes;
  std::vector<Module> modules;  ///< what their files include is not named
};

/// Texts by the names of the holes `device NAME` that they fill, for a host to run the kernels.
using Replacements = std::map<std::string_view, std::string_view>;

/// The module's files and all that they include, each once and after what it includes, with holes filled. A kernel that
/// none of them has is a bug.
std::string render(const KernelSource& source, const Module& module, const Replacements& replacements = {});
std::vector<std::string> render_modules(const KernelSource& source);
/// All modules as one text.
std::string render_all(const KernelSource& source, const Replacements& replacements = {});

/// The canonical bytes of what render_modules() is made from: equal for two sources exactly if all modules are.
Bytes key_of(const KernelSource& source);
/// key_of() with the structure of holes in place of their text: equal for two sources if a trial of one vouches for the
/// other.
Bytes structure_of(const KernelSource& source);

// Functions that the texts of the attention kernels and of the operand-gradient kernels share.

/// How a program's functions are declared: large ones are called, small ones a part of their callers.
const char* linkage(const Program& program);
/// Definitions of the operands that the statements read, before these.
std::string with_operands(const cuda::ProgramSource& source, const std::string& statements);
/// The variable that says whether a key is kept.
std::string keep_variable(const Program& program);
/// The value, and the mask where there is one.
std::vector<NodeId> forward_nodes(const Program& program);

// Calls: the kernels' argument, their launches, and the workspace that these share.

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

// Families and their variants.

/// How the gradient of one operand is summed by tiles of scores.
enum class OperandSum : std::uint8_t {
  kTotal,       ///< varies along neither queries nor keys
  kQueries,     ///< along queries
  kKeys,        ///< along keys
  kDifference,  ///< a table whose indices follow from b, h and kv_idx - q_idx: along diagonals
  kTable,       ///< a table at any indices: each contribution goes to an exact sum of its entry
  kShared,      ///< along queries and keys, and shared by batches or heads, which are gone through one after the other
  kElement,     ///< along both, and is written once: along batches and heads, too
  kSink,        ///< a learned sink: made of rows' LSEs and deltas alone
  kNothing,     ///< nothing contributes: zeros
};
struct OperandTarget {
  std::uint32_t operand = 0;
  OperandSum sum = OperandSum::kTotal;
};

/// The place where a text's targets are summed: the kernels of dq, dk and dv, or kernels that do nothing else.
enum class Gains : std::uint8_t { kBeside, kApart };

/// A direction of a problem: attention, or its gradients and with them those of some operands.
struct Work {
  const compiler::CompiledProblem& problem;
  Direction direction = Direction::kForward;
  std::span<const OperandTarget> targets;  ///< of a backward: operand_targets() beside dq, dk and dv
};

/// The program that a direction's kernels evaluate: the derivative has the forward's value and mask.
const Program& program_of(const compiler::CompiledProblem& problem, Direction direction);

/// Kernels that keep no more bytes of registers in memory than this were faster on an H200 than those of a smaller
/// shape.
inline constexpr std::int64_t kHarmlessSpill = 64;

/// One way to cut a problem into tiles. Immutable, and apart from the problem.
class Variant {
 public:
  Variant() = default;
  virtual ~Variant() = default;
  Variant(const Variant&) = delete;
  Variant& operator=(const Variant&) = delete;

  /// The kernels. Problems whose sizes or strides differ have the same.
  virtual KernelSource source(const Work& work) const = 0;
  /// The launches of a call. Their kernels are of source().
  virtual CallLayout layout(const Work& work) const = 0;
  /// The time of a call on a device with these rates.
  virtual Prediction time(const Work& work, const DeviceRates& rates) const = 0;
  /// The text that people read: "hopper kernels with tiles of 128x128".
  virtual std::string label(const Work& work) const = 0;
  /// Writes what tells it from other variants in its source or its branches, but not what is an argument of kernels.
  virtual void write(CanonicalWriter& out) const = 0;
  virtual cuda::Instructions instructions() const { return cuda::Instructions::kCommon; }
  /// Whether another variant cuts every problem into the same tiles by the same kernels.
  virtual bool is_same(const Variant& other) const = 0;
  /// This variant for work of other sizes and strides, without looking at the others: the one that
  /// KernelFamily::variants() has for that work. Null if only variants() knows it.
  virtual std::shared_ptr<const Variant> at_sizes_of(const Work&, const DeviceProperties&) const { return nullptr; }
  /// This variant by as few CTAs as its kernels work with, so that each takes many tiles one after the other. Null if
  /// the number of CTAs follows from the problem.
  virtual std::shared_ptr<const Variant> on_few_ctas() const { return nullptr; }
  /// The bytes of registers that its kernels may keep in memory.
  virtual std::int64_t harmless_spill() const { return kHarmlessSpill; }
  /// Whether it is built whatever registers spill, because no smaller variant follows.
  virtual bool may_spill() const { return false; }
};
using Variants = std::vector<std::shared_ptr<const Variant>>;

/// Kernels of one design.
struct KernelFamily {
  const char* name;
  /// Why there are no kernels of this family for some work, on this device or, without one, on any; empty if there are.
  std::vector<UnsupportedReason> (*objections)(const Work& work, const DeviceProperties* device);
  /// Its variants for work without objections. It adds a reason for each kind of variant that it leaves out.
  Variants (*variants)(const Work& work, const DeviceProperties& device, std::vector<UnsupportedReason>& reasons);
  /// Whether it is for FP8 queries, keys and values, which it alone is asked for.
  bool of_float8 = false;
  ForwardRounding rounding = {};  ///< of its forwards
};

/// Adds a family behind the library's own, and its files to those of src, until it is destroyed. The library's own ones
/// stand in backend/kernels_backend.cpp; this is for one in a folder elsewhere, as tests have.
class AddedFamily {
 public:
  AddedFamily(const KernelFamily& family, std::span<const cuda::KernelFile> files);
  ~AddedFamily();
  AddedFamily(const AddedFamily&) = delete;
  AddedFamily& operator=(const AddedFamily&) = delete;
};

}  // namespace scoremod::backend::kernels
