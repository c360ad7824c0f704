#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "backend/kernels/family.hpp"
#include "backend/kernels/shared/tile_shape.hpp"

// The common part of the calls of portable and Hopper kernels.

namespace scoremod::backend::kernels {

/// The threads of kernels with a warp for each row or tile: four warps.
inline constexpr int kSmallThreads = 128;
inline constexpr std::int64_t kSmallWarps = 4;

std::int64_t tiles_of(std::int64_t size, std::int64_t tile);

/// The layout of a call before the family's own launches: a backward's row terms, the states of tiles and, if kernels
/// read them, its relative-position tables. add_gains() comes after the family's launches.
CallLayout tiled_layout(const Work& work, const TileShape& shape, bool has_tables = true);

/// Adds the sums of the work's operand gradients and the kernels that write these.
void add_gains(CallLayout& layout, const Work& work, const TileShape& shape);

/// The layout of a call that computes nothing but the gradients of these operands.
CallLayout operand_layout(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                          const TileShape& shape);

}  // namespace scoremod::backend::kernels
