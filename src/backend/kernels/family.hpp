#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/candidate.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/forward_rounding.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "base/canonical_bytes.hpp"
#include "compiler/compiled_problem.hpp"

// The seam between the planner and the families of kernels: the backend lists the families, and knows no more of them.

namespace scoremod::backend::kernels {

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
