#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/attention_shape.hpp"
#include "backend/cpu/scratch.hpp"
#include "backend/cpu/tile_program.hpp"
#include "compiler/operand_reduction.hpp"

namespace scoremod::backend::cpu {

/// A block of queries of one query head against the keys of one tile.
struct GradientTile {
  std::int64_t batch = 0, head = 0;
  std::int64_t query = 0, key = 0;  ///< local indices of the block's first query and the tile's first key
  std::size_t rows = 0;
  std::size_t columns = 0;
};

/// How the gradient of one operand is summed.
enum class GradientKind : std::uint8_t {
  kTable,    ///< scattered; each thread has a table of its own, added to the shared one after each unit
  kShared,   ///< no query axis: every block adds to the same few entries, which a thread keeps until its unit ends
  kByQuery,  ///< a query axis: a block's entries are added to the gradient when the block is done
};

/// The gradient of one operand, and the sums that all threads share.
struct GradientTarget : compiler::OperandReduction {
  GradientKind kind = GradientKind::kShared;
  void* data = nullptr;
  OperandView view;  ///< the gradient lies as the operand does
  /// kTable and kShared: dense sums in double, because they may have as many terms as the problem has scores.
  double* sums = nullptr;
  /// kByQuery: f32 sums; the gradient itself when that is f32, else dense.
  float* rows = nullptr;
  std::array<std::int64_t, kAxisCount> row_strides{};
};

/// The wanted operand gradients of one call. Sums are added up in the order of the units, whichever thread runs them,
/// so that results do not depend on the number of threads.
class OperandGradients {
 public:
  /// `views` and `data` have one entry for each operand, data null where the gradient is not wanted; empty data means
  /// that all are.
  OperandGradients(std::span<const compiler::OperandReduction> reductions, std::span<const OperandView> views,
                   std::span<void* const> data, Scratch& scratch);

  void clear() const;
  /// Writes the gradients from the sums.
  void finish() const;

  /// Whether blocks of different (batch, KV head) add to the same entries as they go.
  bool heads_share_rows() const;
  const std::vector<GradientTarget>& targets() const { return targets_; }

 private:
  std::vector<GradientTarget> targets_;
};

/// One thread's part of the operand gradients.
class OperandGradientWorker {
 public:
  /// For blocks of up to `rows` queries and tiles of up to `columns` keys; row strides in floats.
  OperandGradientWorker(const OperandGradients& gradients, const VectorProgram& program, std::int64_t group,
                        std::size_t rows, std::size_t columns, Scratch& scratch);

  void begin_unit();
  void begin_block();
  /// After TileProgram::evaluate_adjoints: adds the contributions of the block's `row`-th query to `count` keys from
  /// the tile's `column`-th on, where the probability is not 0.
  void add_row(const TileProgram& program, const GradientTile& tile, std::size_t row, std::size_t column,
               std::size_t count, const float* probabilities);
  /// Adds the terms that depend on the queries of the block to the gradients. Blocks must come here one after the
  /// other.
  void commit_block(const GradientTile& tile);
  /// Adds the unit's sums to the shared ones. Units must come here one after the other.
  void commit_unit(std::int64_t batch, std::int64_t head_kv, std::int64_t key, std::size_t columns);

 private:
  struct Part {
    const GradientTarget* target = nullptr;
    std::vector<OperandContribution> contributions;
    double* sums = nullptr;  ///< kTable: as the target's; kShared: [group or 1, columns or 1]
    std::size_t count = 0;   ///< of sums
    float* block = nullptr;  ///< kByQuery: [rows, stride or 1]
  };

  void scatter(const Part& part, const OperandContribution& contribution, const TileProgram& program,
               std::size_t count) const;

  std::int64_t group_;
  std::size_t rows_, columns_, stride_;
  std::vector<Part> parts_;
  float* masked_ = nullptr;
};

}  // namespace scoremod::backend::cpu
