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

/// What kernels can know of a mask before they have scores.
struct MaskKnowledge {
  enum class Kind : std::uint8_t {
    kBand,   ///< it is a band, or nothing is masked, or everything is: tiles are told by their indices
    kScore,  ///< it reads the score: no tile is known to be full
    kList,   ///< a kernel finds the state of every tile before the attention runs
  };
  Kind kind = Kind::kBand;
  /// What the kernel that finds states evaluates, nodes of the direction's program of which an element that is kept has
  /// all true: of kList the mask, of kScore what its parts are that read no score. Without any there are no states.
  std::vector<NodeId> terms;
  bool has_states() const { return !terms.empty(); }
  /// The axes whose indices the states differ along.
  bool varies_with_batch = false, varies_with_head = false, varies_with_query = false;
  /// The states are the same in every call, because the terms read nothing that a call binds.
  bool same_in_every_call = false;
};
MaskKnowledge mask_knowledge(const compiler::CompiledProblem& problem, Direction direction);

/// The text of one direction's kernels. It has the program, the dtype, the head dims and the shape in it, and neither
/// sizes nor strides: problems that differ in these alone have the same text. `primitives` takes the place of
/// attention_primitives.cuh and of hopper_primitives.cuh, for a host to run the kernels on. `targets`, of a backward,
/// are operand_targets() whose gradients are summed, or written, beside.
std::string attention_source(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                             std::optional<std::string_view> primitives = {},
                             std::span<const OperandTarget> targets = {});

/// The same kernels as texts that can be compiled side by side: a backward's kernels take ptxas some seconds each.
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
