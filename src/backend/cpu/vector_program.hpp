#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::backend::cpu {

/// The storage of a value while a tile is evaluated, which also says which axes it varies over. Every value takes 4
/// bytes a lane: f32, i32, or a bool as 0 or -1.
enum class Place : std::uint8_t {
  kUniform,   ///< one value for a (batch, head)
  kRow,       ///< one value for each query of the block
  kColumn,    ///< one value for each key of the tile
  kTile,      ///< one value for each key, for the current query
  kScore,     ///< the scores of the current query
  kUpstream,  ///< d loss / d value of the current query
};
inline constexpr std::size_t kPlaceCount = 6;

/// One value: the index-th register of its place (0 for kScore and kUpstream).
struct Slot {
  Place place = Place::kUniform;
  std::uint32_t index = 0;
};

struct Instruction {
  Op op = Op::kScore;
  Type type = Type::kF32;      ///< of the result
  Type arg_type = Type::kF32;  ///< of the first argument
  std::uint8_t arg_count = 0;
  Slot out;
  std::array<Slot, kMaxArgs> args;
  std::uint32_t operand = 0;  ///< kOperand and kGather
};

/// A constant's bits, and the uniform register that holds them.
struct PresetConstant {
  std::uint32_t index = 0;
  std::uint32_t bits = 0;
};

struct OperandContribution {
  std::uint32_t operand = 0;
  Slot value;
  std::array<Slot, kMaxArgs> indices;
};

/// A program as straight-line code over registers, sorted by how often each part must run. A part runs once for a
/// (batch, head), a block of queries, a tile of keys, or each query of a tile. Registers are reused once their last
/// reader has run.
struct VectorProgram {
  std::vector<PresetConstant> constants;
  std::vector<Instruction> uniform, row, column;
  std::vector<Instruction> value;    ///< per query: everything that needs neither the mask nor upstream
  std::vector<Instruction> keep;     ///< per query: nodes that only the mask needs; after `value`
  std::vector<Instruction> adjoint;  ///< per query: nodes that depend on upstream; after `value`
  std::array<std::uint32_t, kPlaceCount> registers{};

  Slot value_root;
  std::optional<Slot> keep_root;
  std::optional<Slot> score_adjoint;
  std::vector<OperandContribution> contributions;

  /// Whether the value is the score itself.
  bool is_identity() const { return value_root.place == Place::kScore; }
};

VectorProgram vectorize(const Program& program);

}  // namespace scoremod::backend::cpu
