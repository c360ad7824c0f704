#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/program.hpp"

#include "analysis/affine.hpp"
#include "analysis/interval.hpp"

namespace scoremod::masks {

/// Ranges of the operands' values in one tile. The default knows nothing.
class OperandRanges {
 public:
  virtual ~OperandRanges() = default;
  /// The range of a broadcast operand over the part of it that the tile reads (f16 and bf16 as f32). NaN must be told.
  virtual analysis::ValueRange broadcast(std::uint32_t operand, Type type) const;
  /// The range of a table over the entries whose indices, before they are clamped to the table's extents, lie in
  /// `indices`.
  virtual analysis::ValueRange table(std::uint32_t operand, Type type,
                                     std::span<const analysis::ValueRange> indices) const;
};

/// The class of a tile under the mask.
enum class TileMask : std::uint8_t {
  kEmpty,  ///< no element is kept
  kFull,   ///< every element is kept
  kMixed,  ///< neither was proven
};

/// Decides for boxes of elements whether a program's keep root masks all, nothing or some of them. Made once for a
/// program and asked for each tile: without allocation, in time linear in keep's nodes. Immutable, so that threads may
/// share it; each thread has its own Scratch.
///
///     TileMaskAnalyzer analyzer(program);                       // when the plan is made
///     TileMaskAnalyzer::Scratch scratch = analyzer.make_scratch();  // for each thread
///
///     const IndexBox tile{{{b, b}, {h, h}, {q_first, q_last}, {kv_first, kv_last}}};  // global indices, ends included
///     switch (analyzer.analyze(tile, ranges, scratch)) ...
///
/// Sound: kEmpty and kFull hold for every element of the tile whose operand values lie in the given ranges, however f32
/// is rounded. Precise for comparisons of affine forms (a * q + b * kv + c, with q and kv on both sides), and for min,
/// max, abs, and, or, not of them.
class TileMaskAnalyzer {
 public:
  class Scratch {
    friend class TileMaskAnalyzer;
    struct Value {
      analysis::ValueRange range;
      bool affine = false;  ///< the step's form holds in this tile: nothing in it wrapped or rounded
    };
    std::vector<Value> values_;
  };

  explicit TileMaskAnalyzer(const Program& program);

  /// True when the program has no keep root; analyze() then answers kFull.
  bool keeps_all() const { return steps_.empty(); }
  Scratch make_scratch() const;
  /// Indices must satisfy 0 <= index < 2^31 - 1.
  TileMask analyze(const analysis::IndexBox& tile, const OperandRanges& operands, Scratch& scratch) const;

 private:
  /// One node that keep depends on, with its arguments as numbers of steps.
  struct Step {
    Node node;
    Type arg_type = Type::kF32;
    /// A number's own form; a comparison's left side minus its right side. forms_ has it; negative where there is none.
    std::int32_t form = -1;
  };

  /// The ranges of a node's arguments; `ranges` holds them.
  static std::span<const analysis::ValueRange> argument_ranges(const Node& node, const Scratch& scratch,
                                                               std::array<analysis::ValueRange, kMaxArgs>& ranges);
  analysis::ValueRange leaf_range(const Step& step, const analysis::IndexBox& tile, const OperandRanges& operands,
                                  const Scratch& scratch) const;
  void analyze_step(const Step& step, const analysis::IndexBox& tile, const OperandRanges& operands, Scratch& scratch,
                    Scratch::Value& out) const;

  std::vector<Step> steps_;
  std::vector<analysis::AffineForm> forms_;
};

}  // namespace scoremod::masks
