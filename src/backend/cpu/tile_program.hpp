#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/scratch.hpp"
#include "backend/cpu/strip.hpp"
#include "backend/cpu/vector_program.hpp"

namespace scoremod::backend::cpu {

/// A program's registers for one thread, and where in the problem they stand. Values are computed no more often than
/// they change: call begin_head, then begin_rows and begin_columns in any order, then the functions of one query.
class TileProgram {
 public:
  /// Takes registers for up to `rows` queries and `columns` keys.
  TileProgram(const VectorProgram& program, std::span<const OperandView> operands, const IndexOffsets& offsets,
              std::size_t rows, std::size_t columns, Scratch& scratch);

  void begin_head(std::int64_t batch, std::int64_t head);
  void begin_rows(std::int64_t query, std::size_t count);
  void begin_columns(std::int64_t key, std::size_t count);

  /// Evaluates the value, and the mask when `with_keep`, of the block's `row`-th query against `count` keys from the
  /// tile's `column`-th on, whose scores are given. The results stand until the next call.
  void evaluate_row(std::size_t row, std::size_t column, std::size_t count, float* scores, bool with_keep);
  /// After evaluate_row: evaluates the adjoints.
  void evaluate_adjoints(float* upstream);

  LaneSource at(Slot slot) const { return source_of(strip_, slot); }
  const VectorProgram& program() const { return program_; }
  const Strip& strip() const { return strip_; }

 private:
  /// One place's registers over a strip that starts at its first value.
  void run_place(const std::vector<Instruction>& code, Place place, std::size_t count);

  const VectorProgram& program_;
  RegisterFile uniform_, row_, column_, tile_;
  Position origin_;
  Strip strip_;
};

}  // namespace scoremod::backend::cpu
