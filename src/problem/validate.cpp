#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "base/fail.hpp"
#include "base/nearest_name.hpp"
#include "ir/op_table.hpp"
#include "ir/verify.hpp"
#include "problem/block_scales.hpp"
#include "problem/extent.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "problem/validate_sizes.hpp"

namespace scoremod {
namespace problem {
namespace {

std::string text_of(std::span<const std::int64_t> values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

/// The place in a problem that describes something: "q", "operands[0]". Its text is made for messages alone, because
/// each new size of a call is checked.
struct Field {
  const char* name;
  std::optional<std::size_t> number = std::nullopt;

  std::string text() const { return number ? concat(name, "[", *number, "]") : name; }
};

/// The name of an enumeration's value; a value that is none of them is refused with the field and its member.
template <class Enum>
const char* name_of(const Field& field, const char* member, Enum value) {
  try {
    return to_string(value);
  } catch (const Error& error) {
    fail_argument(field.text(), member, ": ", error.what());
  }
}

void check_dtype(const char* field, const char* tensors, DType dtype) {
  const char* found = name_of({field}, "", dtype);
  if (is_floating(dtype)) return;
  fail_argument(field, ": expected f32, f16, bf16, e4m3 or e5m2 (of ", tensors, "), found ", found);
}

/// Checks the dtype of an FP8 KV cache.
void check_dtype_kv(const AttentionProblem& problem) {
  if (!problem.dtype_kv) return;
  const char* found = name_of({"dtype_kv"}, "", *problem.dtype_kv);
  if (!is_float8(*problem.dtype_kv))
    fail_argument("dtype_kv: expected e4m3 or e5m2 (of k and v), found ", found, "; leave it out for k and v of dtype");
  if (is_float8(problem.dtype)) {
    fail_argument("dtype_kv: expected none in a problem whose dtype is ", to_string(problem.dtype),
                  ", which k and v have too, found ", found, "; make dtype f32, f16 or bf16, or leave dtype_kv out");
  }
  if (problem.backward) {
    fail_argument("dtype_kv: expected a problem without backward, found one with it: k and v of an FP8 cache have no ",
                  "gradients; leave backward out, or convert k and v to ", to_string(problem.dtype));
  }
}

/// Checks the fields that only FP8 problems have.
void check_float8_fields(const AttentionProblem& problem) {
  if (problem.dtype_d_o) check_dtype("dtype_d_o", "d_o", *problem.dtype_d_o);
  if (problem.dtype_gradients) {
    const char* found = name_of({"dtype_gradients"}, "", *problem.dtype_gradients);
    if (!is_floating(*problem.dtype_gradients) || is_float8(*problem.dtype_gradients))
      fail_argument("dtype_gradients: expected f32, f16 or bf16 (of dq, dk and dv), found ", found);
  }
  if (is_float8(problem.dtype)) return;
  const auto refuse = [&](const char* field, const char* expected, const char* found) {
    fail_argument(field, ": expected ", expected, " in a problem whose dtype is ", to_string(problem.dtype), ", found ",
                  found, "; make dtype e4m3 or e5m2, or leave it out");
  };
  if (problem.dtype_o && is_float8(*problem.dtype_o))
    refuse("dtype_o", "f32, f16 or bf16", to_string(*problem.dtype_o));
  if (problem.dtype_d_o) refuse("dtype_d_o", "none (d_o has the dtype of o)", to_string(*problem.dtype_d_o));
  if (problem.dtype_gradients)
    refuse("dtype_gradients", "none (dq, dk and dv have the dtype of q)", to_string(*problem.dtype_gradients));
  if (problem.amax_o) refuse("amax_o", "false", "true");
  if (problem.amax_gradients) refuse("amax_gradients", "false", "true");
}

void check_amax_gradients(const AttentionProblem& problem) {
  if (!problem.amax_gradients || problem.backward) return;
  fail_argument(
      "amax_gradients: expected false in a problem without backward, which has no gradients, found true; set ",
      "backward, or leave it out");
}

void check_scale(const AttentionProblem& problem) {
  if (!problem.scale || std::isfinite(*problem.scale)) return;
  fail_argument("scale: expected a finite number, found ", *problem.scale, "; leave it out for 1 / sqrt(dim_qk)");
}

void check_dropout(const AttentionProblem& problem) {
  if (problem.dropout_keys && problem.dropout == 0) {
    fail_argument(
        "dropout_keys: expected them in a problem whose dropout is above 0, found dropout 0; set dropout, or ",
        "leave the keys out");
  }
  if (problem.dropout >= 0 && problem.dropout < 1) return;
  fail_argument("dropout: expected a probability of at least 0 and below 1, found ", problem.dropout,
                "; leave it out for none");
}

/// A tensor as the stride checks see it: one entry per dimension.
struct StridedTensor {
  Field field;
  std::span<const std::int64_t> sizes;
  std::span<const char* const> axes;  ///< the names of its strides; empty for numbers
  std::size_t element_bytes = 0;
  std::string written;  ///< the tensor that is written with these strides; empty if they are only read

  std::string stride_name(std::size_t i) const {
    return axes.empty() ? concat(field.text(), ".strides[", i, "]") : concat(field.text(), ".strides.", axes[i]);
  }
};

void check_bytes(const StridedTensor& tensor, std::span<const std::int64_t> strides) {
  if (extent_bytes(tensor.sizes, strides, tensor.element_bytes)) return;
  fail_argument(tensor.field.text(), ": expected a tensor of less than 2^63 bytes, found sizes ", text_of(tensor.sizes),
                " whose bytes do not fit; make the sizes or the strides smaller");
}

/// Before the strides of a dense layout are computed: that they do not overflow.
void check_dense_bytes(const StridedTensor& tensor) {
  constexpr std::array<std::int64_t, std::max<std::size_t>(kMaxTableRank, kAxisCount)> kNoStrides{};
  check_bytes(tensor, std::span(kNoStrides).first(tensor.sizes.size()));
}

void check_strides(const StridedTensor& tensor, std::span<const std::int64_t> strides,
                   std::span<const bool> may_broadcast) {
  const bool written = !tensor.written.empty();
  bool broadcasts = false;
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (strides[i] < 0) {
      fail_argument(tensor.stride_name(i), ": expected a stride that is not negative, found ", strides[i],
                    "; copy the tensor into ascending order first");
    }
    if (strides[i] > 0 || tensor.sizes[i] == 1) continue;
    if (!may_broadcast[i]) {
      fail_argument(tensor.stride_name(i), ": expected a stride of at least 1 for a dimension of size ",
                    tensor.sizes[i], ", found 0");
    }
    if (written) {
      fail_argument(tensor.stride_name(i), ": expected a stride of at least 1 for a dimension of size ",
                    tensor.sizes[i], ", found 0: ", tensor.written,
                    " is written with these strides, and its elements would share memory; give it memory of its own");
    }
    broadcasts = true;
  }
  check_bytes(tensor, strides);
  if (dimensions_nest(tensor.sizes, strides, broadcasts)) return;
  fail_argument(tensor.field.text(),
                ".strides: expected elements that do not overlap: with the dimensions sorted by stride, each stride ",
                "larger than what the inner dimensions span; found sizes ", text_of(tensor.sizes), " with strides ",
                text_of(strides), "; correct the strides or copy the tensor");
}

/// The tensor that is written with a tensor's strides; empty if they are only read.
std::string written_with(const AttentionProblem& problem, TensorRole role) {
  const auto gradient = [&](const std::optional<TensorLayout>& own, const char* name) {
    return problem.backward && !own ? name : "";
  };
  switch (role) {
    case TensorRole::kQ: return gradient(problem.dq, "dq");
    case TensorRole::kK: return gradient(problem.dk, "dk");
    case TensorRole::kV: return gradient(problem.dv, "dv");
    case TensorRole::kDO: return "";
    default: return to_string(role);
  }
}

/// Ragged tensors have the one layout that has no batches, and no others do.
void check_layout(const AttentionProblem& problem, TensorRole role, const TensorLayout& layout) {
  const char* field = to_string(role);
  const char* name = name_of({field}, ".layout", layout.layout);
  const bool of_queries = is_query_like(role);
  const char* tokens = of_queries ? "tokens_q" : "tokens_kv";
  const bool is_ragged = of_queries ? problem.tokens_q.has_value() : problem.tokens_kv.has_value();
  if (is_ragged && layout.layout != Layout::kTHD) {
    fail_argument(field, ".layout: expected THD, since ", tokens, " makes the tensor ragged; found ", name,
                  "; give it layout THD, or leave ", tokens, " out");
  }
  if (!is_ragged && layout.layout == Layout::kTHD) {
    fail_argument(field, ".layout: expected BSHD, SBHD or BHSD of a tensor that is not ragged, found THD; give ",
                  tokens, ", the number of its tokens");
  }
}

/// Whether a dense tensor of this shape is far below 2^63 bytes: most are, and each new size of a call is checked.
bool is_small(const TensorShape& shape) {
  const auto [batch, heads, sequence, dim] = shape;
  std::int64_t count = 0;
  return !__builtin_mul_overflow(batch * heads, sequence * dim, &count) && count < std::int64_t{1} << 56;
}

void check_tensor(const AttentionProblem& problem, TensorRole role) {
  const TensorLayout& layout = layout_of(problem, role);
  check_layout(problem, role, layout);
  const TensorShape shape = memory_shape_of(problem, role);
  if (!layout.strides && is_small(shape)) return;
  const std::array sizes{shape.batch, shape.heads, shape.sequence, shape.dim};
  static constexpr std::array kAxes{"batch", "head", "sequence", "dim"};
  const StridedTensor tensor{
      {to_string(role)}, sizes, kAxes, size_of(dtype_of(problem, role)), written_with(problem, role)};
  check_dense_bytes(tensor);
  if (!layout.strides) return;
  const Strides& given = *layout.strides;
  const std::array strides{given.batch, given.head, given.sequence, given.dim};
  // A broadcast sequence or head dim has no use, and its strides could not be handed to a matrix product.
  constexpr std::array kMayBroadcast{true, true, false, false};
  check_strides(tensor, strides, kMayBroadcast);
}

void check_lse(const AttentionProblem& problem) {
  const std::array sizes{problem.batch, problem.heads_q, problem.seq_q};
  constexpr std::array<std::int64_t, 3> kAnyStrides{};
  if (extent_bytes(sizes, kAnyStrides, sizeof(float))) return;
  fail_argument("batch, heads_q, seq_q: expected sizes whose LSE takes less than 2^63 bytes, found ", text_of(sizes));
}

std::string axes_of(const OperandDecl& decl) {
  std::string text = "[";
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    if (decl.axes[i]) text += (text.size() > 1 ? std::string(", ") : "") + ir::axis_name(static_cast<Axis>(i));
  }
  return text + "]";
}

void check_operand_dtype(const Field& field, const OperandSpec& spec, const OperandDecl& decl) {
  const char* expected = "bool";
  bool fits = spec.dtype == DType::kBool;
  if (decl.type == Type::kF32) {
    expected = "f32, f16 or bf16";
    fits = is_floating(spec.dtype) && !is_float8(spec.dtype);
  } else if (decl.type == Type::kI32) {
    expected = "i32";
    fits = spec.dtype == DType::kI32;
  }
  if (fits) return;
  fail_argument(field.text(), ".dtype: expected ", expected, " for operand '", decl.name,
                "', which the program declares as ", to_string(decl.type), "; found ",
                name_of(field, ".dtype", spec.dtype));
}

void check_tensor_scale(const AttentionProblem& problem, const Field& field, const OperandSpec& spec) {
  if (spec.dtype != DType::kF32) {
    fail_argument(field.text(), ".dtype: expected f32 for operand '", spec.name,
                  "', the scale of an FP8 tensor; found ", to_string(spec.dtype));
  }
  if (problem.backward && spec.gradient) {
    fail_argument(field.text(), ".gradient: expected false for operand '", spec.name,
                  "', the scale of an FP8 tensor, which has no gradient; found true");
  }
}

void validate_extent(const Field& field, std::size_t dimension, std::int64_t size) {
  if (is_size(size)) return;
  validate_size(concat(field.text(), ".shape[", dimension, "]"), size);
}

/// Extents as a message says them: "64 or 2 or 1".
std::string any_of_extents(const std::vector<std::int64_t>& extents) {
  std::string text;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (i > 0) text += " or ";
    text += extents[i] == kOpenSize ? "open" : std::to_string(extents[i]);
  }
  return text;
}

/// Checks the shape of block scales: along each dimension, one of the extents that it may have.
void check_block_scales(const AttentionProblem& problem, const Field& field, const OperandSpec& spec) {
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV}) {
    if (spec.name != descale_of(role) || fits_block_scales(problem, role, spec.shape)) continue;
    const TensorShape shape = memory_shape_of(problem, role);
    std::string expected;
    for (std::size_t i = 0; i < spec.shape.size(); ++i)
      expected += (i == 0 ? "" : ", ") + any_of_extents(scale_extents(shape, i));
    fail_argument(field.text(), ".shape: expected [", expected, "] of operand '", spec.name,
                  "', a scale for each element, for each block of ", kScaleBlock, " or for all along a dimension of ",
                  to_string(role), "; found ", text_of(spec.shape));
  }
}

void check_operand_shape(const AttentionProblem& problem, const Field& field, const OperandSpec& spec,
                         const OperandDecl& decl) {
  if (decl.is_table()) {
    if (spec.shape.size() != static_cast<std::size_t>(decl.table_rank)) {
      fail_argument(field.text(), ".shape: expected ", decl.table_rank, " sizes, the rank of table '", decl.name,
                    "'; found ", text_of(spec.shape));
    }
    for (std::size_t i = 0; i < spec.shape.size(); ++i) validate_extent(field, i, spec.shape[i]);
    if (has_block_scales(problem, decl.name)) return check_block_scales(problem, field, spec);
    const std::vector<std::int64_t> implied = implied_table_shape(problem, decl.name);
    if (implied.empty() || implied == spec.shape) return;
    fail_argument(field.text(), ".shape: expected ", text_of(implied), ", which the problem's fields give operand '",
                  decl.name, "'; found ", text_of(spec.shape));
  }
  const std::vector<std::int64_t> expected = default_spec(problem, decl).shape;
  if (spec.shape == expected) return;
  fail_argument(field.text(), ".shape: expected ", text_of(expected), ", the problem's sizes along the axes ",
                axes_of(decl), " of operand '", decl.name, "'; found ", text_of(spec.shape));
}

void check_operand_strides(const AttentionProblem& problem, const Field& field, const OperandSpec& spec) {
  std::string written;
  if (problem.backward && spec.has_gradient()) written = concat("the gradient of '", spec.name, "'");
  const StridedTensor tensor{field, spec.shape, {}, size_of(spec.dtype), written};
  check_dense_bytes(tensor);
  if (spec.strides.empty()) return;
  if (spec.strides.size() != spec.shape.size()) {
    fail_argument(field.text(), ".strides: expected one for each dimension (", spec.shape.size(),
                  "), or none for a dense tensor; found ", text_of(spec.strides));
  }
  constexpr std::array<bool, kMaxTableRank> kMayBroadcast{true, true, true, true};
  check_strides(tensor, spec.strides, kMayBroadcast);
}

/// The declaration of an operand: the program's, or that of a field.
const OperandDecl& decl_of(const AttentionProblem& problem, std::span<const OperandDecl> implied, const Field& field,
                           const std::string& name) {
  for (const std::span<const OperandDecl> decls : {std::span(problem.program.operands()), implied}) {
    const auto found = std::ranges::find(decls, name, &OperandDecl::name);
    if (found != decls.end()) return *found;
  }
  std::vector<std::string> known;
  for (const std::span<const OperandDecl> decls : {std::span(problem.program.operands()), implied}) {
    for (const OperandDecl& decl : decls)
      if (std::ranges::find(known, decl.name) == known.end()) known.push_back(decl.name);
  }
  fail_argument(field.text(), ".name: expected an operand of the program (", name_list(known), "), found '", name, "'",
                suggestion(name, known), "; remove it or declare it in the program");
}

/// Checks the operands of a problem that has specs of its implied ones.
void check_operands(const AttentionProblem& problem, std::span<const OperandDecl> implied) {
  for (std::size_t i = 0; i < problem.operands.size(); ++i) {
    const OperandSpec& spec = problem.operands[i];
    const Field field{"operands", i};
    const OperandDecl& decl = decl_of(problem, implied, field, spec.name);
    for (std::size_t j = 0; j < i; ++j) {
      if (problem.operands[j].name == spec.name) {
        fail_argument(field.text(), ".name: expected each operand once, found '", spec.name, "' in operands[", j,
                      "] too; remove one");
      }
    }
    check_operand_dtype(field, spec, decl);
    if (is_tensor_scale(problem, spec.name)) check_tensor_scale(problem, field, spec);
    check_operand_shape(problem, field, spec, decl);
    check_operand_strides(problem, field, spec);
  }
  for (std::uint32_t i = 0; i < problem.program.operands().size(); ++i) spec_of(problem, i);
}

/// Checks all operands; those of fields have default specs where the problem has none.
void check_operands(const AttentionProblem& problem) {
  const std::vector<OperandDecl> implied = implied_operands(problem);
  const bool has_all = std::ranges::all_of(implied, [&](const OperandDecl& decl) {
    return std::ranges::find(problem.operands, decl.name, &OperandSpec::name) != problem.operands.end();
  });
  if (has_all) return check_operands(problem, implied);
  const AttentionProblem whole = with_implied_specs(problem);
  check_operands(whole, implied_operands(whole));
}

/// All tensors of the problem's own, whose sizes and strides it gives.
void check_tensors(const AttentionProblem& problem) {
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV, TensorRole::kO})
    check_tensor(problem, role);
  if (problem.d_o) check_tensor(problem, TensorRole::kDO);
  if (problem.dq) check_tensor(problem, TensorRole::kDQ);
  if (problem.dk) check_tensor(problem, TensorRole::kDK);
  if (problem.dv) check_tensor(problem, TensorRole::kDV);
  check_lse(problem);
}

}  // namespace

void validate_at_sizes(const AttentionProblem& problem) {
  validate_sizes(problem);
  check_scale(problem);
  check_tensors(problem);
  check_operands(problem);
}

}  // namespace problem

void validate(const AttentionProblem& problem) {
  problem::validate_sizes(problem);
  problem::check_dtype("dtype", problem.dtype_o ? "q, k and v" : "q, k, v and o", problem.dtype);
  if (problem.dtype_o) problem::check_dtype("dtype_o", "o", *problem.dtype_o);
  problem::check_dtype_kv(problem);
  problem::check_float8_fields(problem);
  problem::check_amax_gradients(problem);
  problem::check_scale(problem);
  problem::check_dropout(problem);
  problem::check_tensors(problem);
  if (ir::is_derivative(problem.program)) {
    fail_argument(
        "program: expected a user's program with value and, if it masks, keep; found one with gradients (d_score, ",
        "accumulate); leave them out, scoremod derives them");
  }
  problem::name_of({"sink"}, "", problem.sink);
  problem::check_implied_operands(problem);
  problem::check_operands(problem);
}

}  // namespace scoremod
