#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "scoremod/call.hpp"
#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"
#include "scoremod/problem_file.hpp"
#include "scoremod/tensors.hpp"

namespace scoremod {

/// One operand's memory, owned.
struct OwnedOperand {
  std::string name;
  std::vector<std::byte> bytes;
};

/// Everything that a problem reads, owned: each tensor lies as the problem says, elements and gaps.
struct ProblemInputs {
  std::vector<std::byte> q, k, v, d_o;
  /// In the order of the program's declarations.
  std::vector<OwnedOperand> operands;

  /// The operands as a call takes them; they point into this object.
  SCOREMOD_API std::vector<OperandBuffer> operand_buffers() const;
};

/// How the elements of one tensor are drawn.
enum class FillKind : std::uint8_t {
  kNormal,    ///< mean `low`, standard deviation `high` (a sum of uniforms: nothing beyond 3.5 deviations)
  kUniform,   ///< in [low, high); integers in [low, high]
  kSegments,  ///< i32: ids that start at 0 and grow along the last sequence axis, about `high` of them, of uneven
              ///< lengths
  kOffsets,   ///< i32 [batch + 1] of varlen tensors: at most `low` tokens in a sequence and `high` in all; some are
              ///< empty
  kBlocks,    ///< i32 page tables: blocks from 0 to `high` - 1, each once as long as there are enough
};

struct Fill {
  FillKind kind = FillKind::kUniform;
  double low = 0;
  double high = 1;

  bool operator==(const Fill&) const = default;
};

/// Another way than the default to fill one tensor: "q", "k", "v", "d_o" or an operand's name.
struct FillOverride {
  std::string tensor;
  Fill fill;
};

struct RandomInputOptions {
  std::uint64_t seed = 0;
  std::vector<FillOverride> overrides;
};

/// How a tensor is filled by default. The ranges are chosen so that every ready-made modifier and mask matters. q and k
/// are normal, with the deviation that gives scaled scores a deviation of 4. v and d_o are standard normal. FP8 tensors
/// hold normal numbers of deviation 32. Their factors are within a quarter of those that give the deviations above, and
/// scale_o is within a quarter of 64. Float operands are uniform in [0.25, 1.75): positive, so that their quotients,
/// roots and logarithms are well-conditioned. i32 operands with a sequence axis are segment ids; i32 tables hold 0 to
/// 3; offsets and page tables are valid ones. Other i32 operands are lengths in [0, seq_kv]. Bool operands are true
/// three times in four. Throws Error(kInvalidArgument) for a name that is no tensor of the problem.
SCOREMOD_API Fill default_fill(const AttentionProblem& problem, const std::string& tensor);

/// Inputs for a valid problem, the same for the same problem and options on every machine and standard library. A
/// tensor's values depend on the seed and its name, not on the other tensors. Bytes of stride gaps are 0xff: NaN in
/// every float dtype, so that reading them shows. Throws Error(kInvalidArgument).
SCOREMOD_API ProblemInputs random_inputs(const AttentionProblem& problem, const RandomInputOptions& options = {});

/// Reads the elements of a tensor, dense in row-major order and of its dtype, from the file that an entry names.
using ReadInputFile = std::function<std::vector<std::byte>(const InputSpec& entry, const TensorInfo& tensor)>;

/// Inputs for a valid problem by a problem file's entries. Tensors without one are random, by this seed. Throws
/// Error(kInvalidArgument) for an entry that does not fit its tensor, and for one that names a file if there is no
/// `read_file`.
SCOREMOD_API ProblemInputs make_inputs(const AttentionProblem& problem, const std::vector<InputSpec>& entries,
                                       std::uint64_t seed = 0, const ReadInputFile& read_file = {});

}  // namespace scoremod
