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
/// sizes nor strides: problems that differ in these alone have the same text. `primitives` replaces
/// attention_primitives.cuh and hopper_primitives.cuh, for a host to run the kernels on. `targets`, of a backward, are
/// operand_targets() whose gradients these kernels sum or write too.
std::string attention_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                             std::optional<std::string_view> primitives = {},
                             std::span<const OperandTarget> targets = {});

/// attention_source() as texts that can be compiled side by side. NVRTC takes a second or two for each large one. It
/// takes some tenths for a small one, of tile states or relative-position tables.
std::vector<std::string> attention_modules(const compiler::CompiledProblem& problem, Direction direction,
                                           const TileShape& shape, std::span<const OperandTarget> targets = {});

/// A key of attention_source()'s inputs, in a fiftieth of its size: equal for two problems exactly if their texts are.
/// The texts that all problems share are in it as their FNV-1a, which differs between versions of the library.
Bytes key_of_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                    std::span<const OperandTarget> targets = {});

/// key_of_source() without everything that depends on the values of the program's constants. It is equal for two
/// problems of one structure (write_structure()). It differs for two whose kernels do something else.
Bytes structure_of_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                          std::span<const OperandTarget> targets = {});

}  // namespace scoremod::backend::kernels
