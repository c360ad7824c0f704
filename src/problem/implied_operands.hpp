#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scoremod/problem.hpp"

#include "problem/tensor_view.hpp"

namespace scoremod::problem {

/// Names of the operands that a problem's fields add as runtime arguments.
inline constexpr const char* kLengthsOfQueries = "lengths_q";
inline constexpr const char* kLengthsOfKeys = "lengths_kv";
inline constexpr const char* kOffsetsOfQueries = "offsets_q";
inline constexpr const char* kOffsetsOfKeys = "offsets_kv";
inline constexpr const char* kPagesOfKeys = "page_table_k";
inline constexpr const char* kPagesOfValues = "page_table_v";
inline constexpr const char* kSinkOperand = "sink";
inline constexpr const char* kDropoutKeys = "dropout_keys";
inline constexpr const char* kDescaleOfQueries = "descale_q";
inline constexpr const char* kDescaleOfKeys = "descale_k";
inline constexpr const char* kDescaleOfValues = "descale_v";
inline constexpr const char* kScaleOfOutput = "scale_o";
inline constexpr const char* kDescaleOfOutputGradient = "descale_d_o";

/// The operands of a problem's fields, whether or not its program declares them too.
std::vector<OperandDecl> implied_operands(const AttentionProblem& problem);

/// Whether the problem has an FP8 tensor whose scale is an operand of this name. A scale is f32, a single element
/// unless has_head_scales() or has_block_scales(), read by no program, and without a gradient.
bool is_tensor_scale(const AttentionProblem& problem, std::string_view name);

/// Whether the scale of this name, of FP8 keys or values under 16-bit or f32 queries, has one element for each KV head,
/// by its spec's shape.
bool has_head_scales(const AttentionProblem& problem, std::string_view name);

/// Whether the scale of this name has block scales, one for each block of elements of q, k or v, by its spec's shape of
/// four dimensions (problem/block_scales.hpp).
bool has_block_scales(const AttentionProblem& problem, std::string_view name);
/// Whether q, k or v has.
bool has_block_scales(const AttentionProblem& problem);

/// Whether k or v has block scales, and these are scales of whole rows: the elements of a key, or of a value, share
/// one.
bool has_row_scales(const AttentionProblem& problem);

/// The name of the operand that has the scale of q, k, v or d_o, were it FP8; empty for the other tensors.
const char* descale_of(TensorRole role);

/// Whether the problem's dropout keys include the places of queries and keys (problem/call_dropout.hpp), by their
/// shape.
bool has_dropout_places(const AttentionProblem& problem);

/// The shape that a problem's fields give a table of this name, which only they can know; empty for all others.
std::vector<std::int64_t> implied_table_shape(const AttentionProblem& problem, std::string_view name);

/// Throws Error(kInvalidArgument) where the program declares an operand of such a name as something else.
void check_implied_operands(const AttentionProblem& problem);

/// The problem with all runtime arguments among its program's operands: those of fields follow the program's own, with
/// default specs if it has none. Done twice it changes nothing.
AttentionProblem with_implied_operands(AttentionProblem problem);

/// The problem with specs of all of these, and the program as it is: for problems whose program declares them, or that
/// only their sizes are asked of.
AttentionProblem with_implied_specs(AttentionProblem problem);

/// The number of the operand that holds a learned sink; empty without one. The problem has its implied operands.
std::optional<std::uint32_t> sink_operand(const AttentionProblem& problem);

/// The number of the operand of this name; empty where the program declares none.
std::optional<std::uint32_t> operand_number(const Program& program, const std::string& name);

/// Moves the problem's lengths into the program's mask. A key is kept only if the global indices are below the lengths,
/// and below those that the offsets of varlen tensors give. The problem has its implied operands.
AttentionProblem with_lengths_in_mask(AttentionProblem problem);

}  // namespace scoremod::problem
