#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/candidate.hpp"
#include "backend/device_properties.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/shared/tile_time.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// How kernels that walk over tiles of scores cut a problem: the part that all families have. Each family's shape is
/// derived from it.
struct TileShape {
  int warps = 4;          ///< the consumer warps of a CTA
  int row_tiles = 1;      ///< 16-row tiles of a warp whose rows are queries, in the forward and in the kernel of dq
  int queries = 64;       ///< of a tile of scores, and of a CTA in these two kernels
  int keys = 64;          ///< of a tile of scores, and of a CTA in the kernel of dk and dv
  int element_bytes = 2;  ///< of a number in a tile
  int blocks = 2;         ///< CTAs that an SM should have room for, which limits a thread's registers
  /// Launches of a forward that each write some of o's dims, because the accumulators of all do not fit into the
  /// registers. Each makes the scores anew.
  int value_parts = 1;

  ScoreTile score_tile() const { return {queries, keys}; }
  /// Whether tiles and MMAs are of float32.
  bool holds_floats() const { return element_bytes == 4; }
  int consumer_threads() const { return 32 * warps; }
  bool operator==(const TileShape&) const = default;
};

/// As many value_parts as a forward needs for this head dim of v.
int value_parts_of(std::int64_t dim_v);
/// The dims of v and o that a kernel of this shape has.
std::int64_t value_dims(const TileShape& shape, std::int64_t dim_v);
/// Adds a forward's launch, once for each of the shape's value_parts.
void add_forward_launches(CallLayout& layout, const KernelLaunch& launch, const TileShape& shape, std::int64_t dim_v);

/// The widest head whose dims one thread's registers can hold for 16 rows of a warp, and the widest one of forwards
/// that have value_parts.
inline constexpr std::int64_t kWidestHead = 256, kWidestForward = 576;
constexpr std::int64_t widest_head(Direction direction) {
  return direction == Direction::kForward ? kWidestForward : kWidestHead;
}
/// The FP8 tensors that a family takes as they are.
enum class Float8 : std::uint8_t {
  kNone,
  kKeys,  ///< keys and values under queries of 16 bits
  kAll,   ///< queries, keys and values
};

/// Why no tiled kernels can be made for a direction of a problem, whatever the device; empty where they can.
std::vector<UnsupportedReason> problem_objections(const compiler::CompiledProblem& problem, Direction direction,
                                                  Float8 float8 = Float8::kNone);
/// problem_objections(), and device_objections() if there are none and there is a device.
std::vector<UnsupportedReason> tiled_objections(const Work& work, const DeviceProperties* device,
                                                Float8 float8 = Float8::kNone);
/// Why a device cannot run what these kernels are made of, whatever the problem.
std::vector<UnsupportedReason> device_objections(const DeviceProperties& device);
/// The reasons why a launch has too little shared memory on this device.
std::vector<UnsupportedReason> memory_objections(const std::vector<KernelLaunch>& launches,
                                                 const DeviceProperties& device);

/// The threads of kernels with a warp for each row or tile: four warps.
inline constexpr int kSmallThreads = 128;
inline constexpr std::int64_t kSmallWarps = 4;

std::int64_t tiles_of(std::int64_t size, std::int64_t tile);
/// The work tiles of a head in all sequences, each of `tiles` or, of packed tokens, as first_packed_tile() of
/// shared/tiles.cuh places them.
std::int64_t work_tiles(std::int64_t batch, std::int64_t tiles, std::optional<std::int64_t> packed_tokens,
                        std::int64_t rows);

/// Whether the work tiles of varlen sequences are packed (first_packed_tile() of shared/tiles.cuh). Kernels that sum
/// operand gradients have a place for each tile of the longest length instead.
bool packs_tiles(const AttentionProblem& problem, bool has_no_targets);

/// How many tokens the varlen tensors have that a direction writes; none if it writes dense tensors alone. The kernel
/// of shared/outside_rows.cuh fills the rows of tokens that no sequence has.
std::optional<std::int64_t> written_tokens(const Work& work);

/// The layout of a call before the family's own launches: a backward's row terms, the states of tiles and its
/// relative-position tables. Kernels that sum operand gradients apart read no tables. add_gains() comes after the
/// family's launches.
CallLayout tiled_layout(const Work& work, const TileShape& shape, Gains gains = Gains::kBeside);
/// Adds longest-first scheduling of so many rows of tiles (or columns) after tiled_layout(), by the time that the
/// tiles' states ask for. Without it they are in the order of a causal mask.
void add_tile_order(CallLayout& layout, const Work& work, std::int64_t rows);
/// The launch of attention_backward_rows, after tiled_layout(). Without `whole_tiles` it makes no terms of rows behind
/// the last query.
KernelLaunch row_terms_launch(const Work& work, const CallLayout& layout, const TileShape& shape,
                              bool whole_tiles = false);

/// Facts about a mask that kernels know before they have scores.
struct MaskKnowledge {
  enum class Kind : std::uint8_t {
    kBand,   ///< it is a band, perhaps beside the ends of varlen sequences, or nothing is masked, or everything is:
             ///< tiles are told by their indices and offsets
    kScore,  ///< it reads the score: no tile is known to be full
    kList,   ///< a kernel finds the state of every tile before the attention runs
  };
  Kind kind = Kind::kBand;
  /// The nodes that the kernel of the block mask evaluates, all of which are true for a kept element. For kList they
  /// are the mask, for kScore its score-free parts. Without any there are no states.
  std::vector<NodeId> terms;
  bool has_states() const { return !terms.empty(); }
  /// The axes whose indices the states differ along.
  bool varies_with_batch = false, varies_with_head = false, varies_with_query = false;
  /// A query keeps all keys that an earlier one of its head keeps, as below a diagonal. Some kernels look at the first
  /// and the last of a tile's queries alone then.
  bool grows_with_query = false;
  /// That, and a query keeps all keys of its batch and head before one that it keeps, wherever they lie. These kernels
  /// look at the first and the last of a tile's keys alone then.
  bool keeps_prefix = false;
  /// The states are the same in every call, because the terms read no runtime arguments.
  bool same_in_every_call = false;
};
MaskKnowledge mask_knowledge(const compiler::CompiledProblem& problem, Direction direction);

/// mask_over() of shared/block_mask.cuh, for a mask that keeps what all of `terms` keep. Terms are bools of the
/// program that read neither the score nor the upstream gradient. It tells by intervals whether a box of elements is
/// kept whole, or not at all; for a mask with many nodes it never does.
std::string mask_ranges_function(const AttentionProblem& problem, const Program& program,
                                 std::span<const NodeId> terms);

/// Relative-position tables, which a kernel fills first (shared/program.cuh). They hold floats of a program
/// that follow from b, h and kv_idx - q_idx alone. Such a float takes longer to evaluate for each score than to read.
struct PositionTables {
  std::vector<NodeId> nodes;  ///< at most kMaxPositionTables
  bool by_batch = false, by_head = false;

  /// The entries of each table, for tiles that cover so many rows and keys.
  std::int64_t entries(const AttentionProblem& problem, std::int64_t rows, std::int64_t keys) const;
};
inline constexpr std::size_t kMaxPositionTables = 4;

/// The tables of a direction's program. Nodes of the mask alone are not among them.
PositionTables position_tables(const Program& program);
PositionTables position_tables(const compiler::CompiledProblem& problem, Direction direction);

/// The files of a variant's kernels.
struct KernelFiles {
  /// Kernels that take little time to compile, in one module with those of the block mask and tables.
  Module small;
  Module large;  ///< each file is a module of its own
};

/// A family's shape as constants of shared texts (elements.cuh) and in the keys of stores, beside its TileShape. Both
/// have one form for all families: a family sets what its kernels have, and leaves the rest as it is here.
struct KernelTraits {
  const char* name = "";  ///< of the family in labels
  int family = 0;         ///< its number in keys
  int producers = 0;      ///< the producer threads of a CTA
  int step = 32, part = 32, key_step = 32, stages = 2, teams = 1, value_groups = 1;
  bool pack_gqa = false;  ///< rows of a tile are of several heads: kernels evaluate the mask, and read no tables
  bool persistent = false, separate_dv = false, fused = false, heads_take_turns = false, recomputed_delta = false;
  std::optional<std::uint32_t> loaded_bias = std::nullopt;  ///< the operand whose tiles TMA loads
  // These stand in keys alone.
  int key_bytes = 2, key_stages = 2, dq_order = 0;
  bool ordered = false, split = false;
};

/// Fills the holes that all kernels of a direction have: settings, the program and the mask.
void fill_attention(Holes& holes, const Work& work, const TileShape& shape, const KernelTraits& traits, Gains gains);
/// The kernels that classify tiles by the mask and put rows in order; none where tiles' indices tell.
Module block_mask_files(const compiler::CompiledProblem& problem, Direction direction);

/// A variant of the attention families, whose kernels walk over tiles of scores of one TileShape.
class TiledVariant : public Variant {
 public:
  /// The source has the program, the dtype, the head dims and the shape in it, and neither sizes nor strides. Problems
  /// that differ in these alone have the same source.
  KernelSource source(const Work& work) const override;
  /// The family's, with the launch in front that fills rows of tokens that no sequence has.
  CallLayout layout(const Work& work) const final;
  std::string label(const Work& work) const override;
  void write(CanonicalWriter& out) const override;

  virtual const TileShape& tile() const = 0;
  virtual KernelTraits traits() const = 0;

 protected:
  explicit TiledVariant(std::shared_ptr<const SharedMaskWork> mask)
      : mask_(mask ? std::move(mask) : std::make_shared<const SharedMaskWork>()) {}

  virtual CallLayout family_layout(const Work& work) const = 0;
  virtual KernelFiles files(Direction direction) const = 0;
  /// Fills the holes of the family's own files.
  virtual void fill(Holes&, const Work&) const {}
  /// tiled_time() and, if the work has targets, gains_time().
  Prediction time_from(const Work& work, const DeviceRates& rates, const TiledTimes& direct, bool small) const;
  const MaskWork& mask_work(const Work& work) const { return mask_->of(work, tile().score_tile()); }

 private:
  std::shared_ptr<const SharedMaskWork> mask_;
};

/// A variant with its family's own shape, which is derived from TileShape and has traits().
template <class Shape>
class ShapedVariant : public TiledVariant {
 public:
  explicit ShapedVariant(const Shape& shape, std::shared_ptr<const SharedMaskWork> mask = nullptr)
      : TiledVariant(std::move(mask)), shape_(shape) {}

  const Shape& shape() const { return shape_; }
  const TileShape& tile() const final { return shape_; }
  KernelTraits traits() const final { return shape_.traits(); }
  bool is_same(const Variant& other) const override {
    const auto* shaped = dynamic_cast<const ShapedVariant*>(&other);
    return shaped != nullptr && shaped->shape_ == shape_;
  }

 private:
  Shape shape_;
};

}  // namespace scoremod::backend::kernels
