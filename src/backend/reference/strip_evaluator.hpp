#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "backend/reference/strip_operations.hpp"

namespace scoremod::backend::reference {

/// Computes a program in float64 at a strip of keys of one query, node by node over all of its lanes. Each node is
/// computed no more often than it changes. Ops are the interpreter's inline functions, so the two agree bit for bit.
/// Values are found and kept in another way.
class StripEvaluator {
 public:
  /// The most keys of a strip: few enough that the values of an ordinary program stay in the second-level cache.
  static constexpr std::size_t kMaxKeys = 256;

  /// The program's operands must be those of the views. All must outlive the evaluator. `keys` is the problem's seq_kv.
  StripEvaluator(const Program& program, const std::vector<OperandView>& operands, const IndexOffsets& offsets,
                 std::int64_t keys);

  /// Computes nodes that do not change within a head, or with its query.
  void begin_head(std::int64_t batch, std::int64_t head);
  void begin_query(std::int64_t query);
  /// Computes everything at `count` keys from `first` on. The scores, and a derivative's upstream, must stay until the
  /// results have been read.
  void evaluate(std::int64_t first, std::size_t count, const double* scores, const double* upstream = nullptr);

  /// A node's values of the last strip.
  Lanes at(NodeId node) const;
  /// For each lane of the last strip whether the key is kept: the mask keeps it and its value is not -inf.
  void write_kept(std::uint8_t* kept) const;
  /// Adds a kOperandAdjoint root's values of the kept lanes to its operand's gradient, which is dense.
  void add_contributions(const Root& root, const std::uint8_t* kept, std::vector<double>& gradient) const;

 private:
  /// The axes that a node's value varies over, which decide when it is computed and its number of lanes.
  enum class Level : std::uint8_t { kHead, kQuery, kKey, kScore };

  struct Values {
    Level level = Level::kHead;
    std::vector<double> f;
    std::vector<std::int32_t> i;
    std::vector<std::uint8_t> b;
  };

  Level level_of(const Node& node) const;
  void run(Level level, std::int64_t first, std::size_t count);
  void compute(NodeId id);
  void compute_leaf(const Node& node, Values& out);
  void read_operand(const Node& node, Values& out);
  /// Calls body(lane, place) for the lanes of the strip. The place is the entry that a read at these indices reads,
  /// counted in the strides (one for each dimension of the operand).
  template <class Body>
  void for_each_place(const OperandView& operand, std::span<const NodeId> indices,
                      const std::array<std::int64_t, kMaxTableRank>& strides, const Body& body) const;

  const Program& program_;
  const std::vector<OperandView>& operands_;
  const IndexOffsets offsets_;
  std::vector<Values> values_;
  std::size_t all_keys_;
  Element element_;        ///< batch, head, query, and the first key of the strip
  std::size_t count_ = 0;  ///< of the strip
  const double* scores_ = nullptr;
  const double* upstream_ = nullptr;
};

}  // namespace scoremod::backend::reference
