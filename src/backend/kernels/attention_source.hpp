#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/kernels/operand_target.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "base/bytes.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The text of one direction's kernels. It has the program, the dtype, the head dims and the shape in it, and neither
/// sizes nor strides: problems that differ in these alone have the same text. `primitives` takes the place of
/// attention_primitives.cuh and of hopper_primitives.cuh, for a host to run the kernels on. `targets`, of a backward,
/// are operand_targets() whose gradients are summed, or written, beside.
std::string attention_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                             std::optional<std::string_view> primitives = {},
                             std::span<const OperandTarget> targets = {});

/// The same kernels as texts that can be compiled side by side: the large ones take NVRTC a second or two each, and
/// the small ones, of tiles' states and tables of differences, some tenths.
std::vector<std::string> attention_modules(const compiler::CompiledProblem& problem, Direction direction,
                                           const TileShape& shape, std::span<const OperandTarget> targets = {});

/// What attention_source() follows from, in a fiftieth of its size: equal for two problems exactly where their texts
/// are. The texts that are the same for all stand there as their FNV-1a, which another version of the library has
/// another one of.
Bytes key_of_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                    std::span<const OperandTarget> targets = {});

/// The same with everything that depends on the values of the program's constants left out: it is equal for two
/// problems of one structure (write_structure()), and for no two whose kernels do something else.
Bytes structure_of_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                          std::span<const OperandTarget> targets = {});

}  // namespace scoremod::backend::kernels
