#include "backend/cpu/tile_program.hpp"

#include <cstring>

#include "backend/cpu/attention_shape.hpp"

namespace scoremod::backend::cpu {

TileProgram::TileProgram(const VectorProgram& program, std::span<const OperandView> operands,
                         const IndexOffsets& offsets, std::size_t rows, std::size_t columns, Scratch& scratch)
    : program_(program) {
  const auto take = [&](Place place, std::size_t lanes) {
    const std::size_t stride = round_up(lanes, kLanePadding) + kLanePadding;
    return RegisterFile{scratch.take<float>(program.registers[static_cast<std::size_t>(place)] * stride), stride,
                        false};
  };
  uniform_ = take(Place::kUniform, 1);
  row_ = take(Place::kRow, rows);
  column_ = take(Place::kColumn, columns);
  tile_ = take(Place::kTile, columns);
  strip_.offsets = offsets;
  strip_.operands = operands;
  if (uniform_.base == nullptr) return;
  for (const PresetConstant& constant : program.constants) {
    std::memcpy(uniform_.base + constant.index * uniform_.stride, &constant.bits, sizeof(constant.bits));
  }
}

void TileProgram::run_place(const std::vector<Instruction>& code, Place place, std::size_t count) {
  strip_.file(Place::kUniform) = uniform_;
  strip_.file(Place::kUniform).broadcast = place != Place::kUniform;
  strip_.file(Place::kRow) = row_;
  strip_.file(Place::kColumn) = column_;
  strip_.position = origin_;
  strip_.length = count;
  run(code, strip_);
}

void TileProgram::begin_head(std::int64_t batch, std::int64_t head) {
  origin_ = {batch, head, 0, 0};
  run_place(program_.uniform, Place::kUniform, 1);
}

void TileProgram::begin_rows(std::int64_t query, std::size_t count) {
  origin_.query = query;
  run_place(program_.row, Place::kRow, count);
}

void TileProgram::begin_columns(std::int64_t key, std::size_t count) {
  origin_.key = key;
  run_place(program_.column, Place::kColumn, count);
}

void TileProgram::evaluate_row(std::size_t row, std::size_t column, std::size_t count, float* scores, bool with_keep) {
  strip_.file(Place::kUniform) = {uniform_.base, uniform_.stride, true};
  strip_.file(Place::kRow) = {row_.base + row, row_.stride, true};
  strip_.file(Place::kColumn) = {column_.base + column, column_.stride, false};
  strip_.file(Place::kTile) = tile_;
  strip_.file(Place::kScore) = {scores, 0, false};
  strip_.position = origin_;
  strip_.position.query += static_cast<std::int64_t>(row);
  strip_.position.key += static_cast<std::int64_t>(column);
  strip_.length = count;
  run(program_.value, strip_);
  if (with_keep) run(program_.keep, strip_);
}

void TileProgram::evaluate_adjoints(float* upstream) {
  strip_.file(Place::kUpstream) = {upstream, 0, false};
  run(program_.adjoint, strip_);
}

}  // namespace scoremod::backend::cpu
