#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "scoremod/attention.hpp"
#include "scoremod/dtype.hpp"

#include "backend/cpu/vector_program.hpp"

namespace scoremod::backend::cpu {

/// Floats of slack after each register: kernels work on whole vectors, of at most this many lanes.
inline constexpr std::size_t kLanePadding = 16;

/// An operand's memory as the evaluator reads it. Strides are in elements and 0 along the axes that it lacks.
struct OperandView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::array<std::int64_t, kAxisCount> axis_strides{};
  int table_rank = 0;
  std::array<std::int64_t, kMaxTableRank> extents{};
  std::array<std::int64_t, kMaxTableRank> table_strides{};
  /// Every element's distance from the first fits an i32.
  bool narrow = false;
};

/// The first register of one place, and the distance between registers, in floats.
struct RegisterFile {
  float* base = nullptr;
  std::size_t stride = 0;
  bool broadcast = false;  ///< one value stands for all lanes
};

/// The element that lane 0 of a strip is at; local indices.
struct Position {
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

/// A run of consecutive elements, and the registers that hold their values.
struct Strip {
  std::array<RegisterFile, kPlaceCount> files;
  std::size_t length = 0;
  Position position;
  IndexOffsets offsets;
  std::span<const OperandView> operands;

  RegisterFile& file(Place place) { return files[static_cast<std::size_t>(place)]; }
  const RegisterFile& file(Place place) const { return files[static_cast<std::size_t>(place)]; }
};

/// A value that varies over the lanes, or one that all lanes share.
struct LaneSource {
  float* data = nullptr;
  bool broadcast = false;
};

inline LaneSource source_of(const Strip& strip, Slot slot) {
  const RegisterFile& file = strip.file(slot.place);
  return {file.base + slot.index * file.stride, file.broadcast};
}

/// Runs straight-line code over a strip. Lanes at and after `length`, up to the next multiple of the vector length, are
/// written with unspecified values.
void run(std::span<const Instruction> code, const Strip& strip);

}  // namespace scoremod::backend::cpu
