#include "runtime/call_tensors.hpp"

#include <algorithm>
#include <cmath>

#include "base/fail.hpp"
#include "masks/mask_class.hpp"
#include "problem/bound_scale.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/buffer_check.hpp"
#include "runtime/operand_data.hpp"
#include "runtime/workspace.hpp"

namespace scoremod::runtime {
namespace {

using problem::TensorRole;

/// At most, without operands and their gradients: those of a backward call, and the workspace.
constexpr std::size_t kTensorsOfACall = 14;

TensorUse use_of(const char* name, const AttentionProblem& problem, TensorRole role, const void* data,
                 std::size_t bytes, bool written) {
  const problem::TensorShape shape = problem::memory_shape_of(problem, role);
  const Strides strides = problem::strides_of(problem, role);
  const std::size_t size = size_of(problem::dtype_of(problem, role));
  return {name,
          data,
          bytes,
          written,
          size,
          size,
          4,
          {shape.batch, shape.heads, shape.sequence, shape.dim},
          {strides.batch, strides.head, strides.sequence, strides.dim}};
}

TensorUse input(const AttentionProblem& problem, TensorRole role, const ConstBuffer& buffer) {
  return use_of(problem::to_string(role), problem, role, buffer.data, buffer.bytes, false);
}

TensorUse output(const AttentionProblem& problem, TensorRole role, const Buffer& buffer) {
  return use_of(problem::to_string(role), problem, role, buffer.data, buffer.bytes, true);
}

TensorUse operand_use(const OperandSpec& spec, const void* data, std::size_t bytes, bool written) {
  const std::size_t size = size_of(spec.dtype);
  TensorUse use{spec.name, data, bytes, written, size, size, spec.shape.size(), {}, problem::strides_of(spec)};
  std::ranges::copy(spec.shape, use.shape.begin());
  return use;
}

std::string declared_names(const AttentionProblem& problem) {
  std::string names;
  for (const OperandDecl& decl : problem.program.operands())
    names += concat(names.empty() ? "'" : ", '", decl.name, "'");
  return names.empty() ? "none" : names;
}

/// The number of the operand of this name.
std::size_t operand_number(const AttentionProblem& problem, const std::string& name, const char* what) {
  const std::vector<OperandDecl>& decls = problem.program.operands();
  const auto found =
      std::find_if(decls.begin(), decls.end(), [&](const OperandDecl& decl) { return decl.name == name; });
  if (found == decls.end()) {
    fail_argument("'", name, "' is no operand: expected ", what, " of the program's operands (",
                  declared_names(problem), ")");
  }
  return static_cast<std::size_t>(found - decls.begin());
}

/// Whether a call of this direction may leave an operand out: the forward does not see d_o.
bool may_leave_out(const AttentionProblem& problem, backend::Direction direction, const std::string& name) {
  return direction == backend::Direction::kForward && name == problem::kDescaleOfOutputGradient &&
         problem::is_tensor_scale(problem, name);
}

/// Puts the caller's operands into the order of the declarations.
std::vector<const void*> bind_operands(const AttentionProblem& problem, backend::Direction direction,
                                       const std::vector<OperandBuffer>& given, std::vector<TensorUse>& uses) {
  const std::vector<OperandDecl>& decls = problem.program.operands();
  std::vector<const void*> data(decls.size());
  std::vector<bool> seen(decls.size());
  for (const OperandBuffer& operand : given) {
    const std::size_t i = operand_number(problem, operand.name, "one");
    if (seen[i]) fail_argument("operand '", operand.name, "' is given twice: expected it once");
    seen[i] = true;
    data[i] = operand.buffer.data;
    const OperandSpec& spec = problem::spec_of(problem, static_cast<std::uint32_t>(i));
    uses.push_back(operand_use(spec, operand.buffer.data, operand.buffer.bytes, false));
  }
  for (std::size_t i = 0; i < decls.size(); ++i) {
    if (!seen[i] && !may_leave_out(problem, direction, decls[i].name))
      fail_argument("operand '", decls[i].name, "' is missing: expected a buffer for each operand of the program");
  }
  return data;
}

std::vector<void*> bind_gradients(const AttentionProblem& problem, const std::vector<OperandGradient>& wanted,
                                  std::vector<TensorUse>& uses) {
  std::vector<void*> data(problem.program.operands().size());
  std::vector<bool> seen(data.size());
  for (const OperandGradient& gradient : wanted) {
    const std::size_t i = operand_number(problem, gradient.name, "a gradient");
    const OperandSpec& spec = problem::spec_of(problem, static_cast<std::uint32_t>(i));
    if (!is_floating(spec.dtype)) {
      fail_argument("the gradient of operand '", gradient.name, "': expected an f32, f16 or bf16 operand, found ",
                    to_string(spec.dtype), "; leave the gradient out");
    }
    if (!spec.gradient) {
      fail_argument(
          "the gradient of operand '", gradient.name,
          "': expected an operand that was compiled with a gradient, found one without; set OperandSpec::gradient "
          "before compile, or leave the gradient out");
    }
    if (seen[i]) fail_argument("the gradient of operand '", gradient.name, "' is given twice: expected it once");
    seen[i] = true;
    data[i] = gradient.buffer.data;
    uses.push_back(operand_use(spec, gradient.buffer.data, gradient.buffer.bytes, true));
    uses.back().before_name = "gradient of ";
  }
  return data;
}

/// Mask classification relies on indices in this range: there the difference of two cannot wrap.
void check_offset(const char* axis, std::int32_t offset, std::int64_t size) {
  if (offset < 0) fail_argument("offsets.", axis, ": expected an offset of at least 0, found ", offset);
  if (offset + size > masks::kIndexLimit) {
    fail_argument("offsets.", axis, " is too large: expected every global index below 2^30, found ", offset,
                  " added to indices up to ", size - 1);
  }
}

/// A plan of a problem without index_offsets may know no offsets, or which tiles its mask empties for all calls.
void check_announced(const AttentionProblem& problem, const IndexOffsets& offsets) {
  if (problem.index_offsets || offsets == IndexOffsets{}) return;
  fail_argument(
      "offsets: expected 0 in a problem that was compiled without index_offsets, found others; set that field, ",
      "or leave the offsets 0");
}

/// Offsets and page tables describe whole sequences, by the call's own batches.
void check_no_offsets(const AttentionProblem& problem, const IndexOffsets& offsets) {
  const auto require_none = [](const char* axis, std::int32_t offset, const char* field) {
    if (offset == 0) return;
    fail_argument("offsets.", axis, ": expected 0 in a problem with ", field, ", found ", offset,
                  "; give each call the whole of its own sequences");
  };
  if (problem.tokens_q) require_none("batch", offsets.batch, "tokens_q");
  if (problem.tokens_q) require_none("query", offsets.query, "tokens_q");
  if (problem.tokens_kv) require_none("batch", offsets.batch, "tokens_kv");
  if (problem.tokens_kv) require_none("key", offsets.key, "tokens_kv");
  if (problem.paged) require_none("key", offsets.key, "paged");
}

backend::CallParameters check_options(const AttentionProblem& problem, const CallOptions& options) {
  const float scale = options.scale.value_or(problem.effective_scale());
  if (!std::isfinite(scale)) fail_argument("expected a finite scale, found ", scale);
  if (scale != problem.effective_scale() && problem::reads_scale(problem.program)) {
    fail_argument("expected no scale of a call other than the problem's (", problem.effective_scale(),
                  "), since its program reads 'qk_scale', found ", scale, "; give it to the problem");
  }
  check_offset("batch", options.offsets.batch, problem.batch);
  check_offset("head", options.offsets.head, problem.heads_q);
  check_offset("query", options.offsets.query, problem.seq_q);
  check_offset("key", options.offsets.key, problem.seq_kv);
  check_no_offsets(problem, options.offsets);
  check_announced(problem, options.offsets);
  return {scale, options.offsets, options.stream, options.dropout_seed, options.dropout_offset};
}

/// Adds the largest magnitude of an output. `field` is the problem's that asks for it.
void add_amax(const char* name, const char* field, bool wanted, const Buffer& buffer, std::vector<TensorUse>& uses) {
  if (wanted) {
    uses.push_back({name, buffer.data, buffer.bytes, true, sizeof(float), sizeof(float)});
  } else if (buffer.data != nullptr || buffer.bytes != 0) {
    fail_argument("'", name, "': expected no buffer in a problem that was compiled without ", field,
                  ", found one; set that field, or leave the buffer out");
  }
}

/// An absent workspace is fine: the runtime then allocates one.
void add_workspace(Buffer workspace, std::size_t needed, std::vector<TensorUse>& uses) {
  if (workspace.data == nullptr && workspace.bytes == 0) return;
  if (needed == 0) return;
  uses.push_back({"workspace",
                  workspace.data,
                  workspace.bytes,
                  true,
                  1,
                  kWorkspaceAlignment,
                  1,
                  {static_cast<std::int64_t>(needed)},
                  {1}});
}

}  // namespace

ForwardCall check_call(const AttentionProblem& problem, const ForwardArgs& args, Buffer workspace,
                       std::size_t workspace_bytes, const backend::MemorySpace& memory) {
  std::vector<TensorUse> uses;
  uses.reserve(kTensorsOfACall + args.operands.size());
  uses.push_back(input(problem, TensorRole::kQ, args.q));
  uses.push_back(input(problem, TensorRole::kK, args.k));
  uses.push_back(input(problem, TensorRole::kV, args.v));
  ForwardCall call;
  call.operands = bind_operands(problem, backend::Direction::kForward, args.operands, uses);
  uses.push_back(output(problem, TensorRole::kO, args.o));
  const bool with_lse = problem.stats || args.lse.data != nullptr || args.lse.bytes != 0;
  if (with_lse) uses.push_back(use_of("lse", problem, TensorRole::kLse, args.lse.data, args.lse.bytes, true));
  if (problem.max_logit) {
    uses.push_back(use_of("max_logit", problem, TensorRole::kLse, args.max_logit.data, args.max_logit.bytes, true));
  } else if (args.max_logit.data != nullptr || args.max_logit.bytes != 0) {
    fail_argument(
        "'max_logit': expected no buffer in a problem that was compiled without max_logit, found one; set that ",
        "field, or leave the buffer out");
  }
  add_amax("amax_o", "amax_o", problem.amax_o, args.amax_o, uses);
  add_workspace(workspace, workspace_bytes, uses);
  call.parameters = check_options(problem, args.options);
  check_buffers(uses, memory);
  check_operand_data(problem, call.operands, memory);
  call.tensors = {args.q.data,
                  args.k.data,
                  args.v.data,
                  call.operands,
                  args.o.data,
                  static_cast<float*>(args.lse.data),
                  static_cast<float*>(args.max_logit.data),
                  static_cast<float*>(args.amax_o.data)};
  return call;
}

BackwardCall check_call(const AttentionProblem& problem, const BackwardArgs& args, Buffer workspace,
                        std::size_t workspace_bytes, const backend::MemorySpace& memory) {
  std::vector<TensorUse> uses;
  uses.reserve(kTensorsOfACall + args.operands.size() + args.d_operands.size());
  uses.push_back(input(problem, TensorRole::kQ, args.q));
  uses.push_back(input(problem, TensorRole::kK, args.k));
  uses.push_back(input(problem, TensorRole::kV, args.v));
  uses.push_back(input(problem, TensorRole::kO, args.o));
  uses.push_back(use_of("lse", problem, TensorRole::kLse, args.lse.data, args.lse.bytes, false));
  uses.push_back(input(problem, TensorRole::kDO, args.d_o));
  BackwardCall call;
  call.operands = bind_operands(problem, backend::Direction::kBackward, args.operands, uses);
  uses.push_back(output(problem, TensorRole::kDQ, args.dq));
  uses.push_back(output(problem, TensorRole::kDK, args.dk));
  uses.push_back(output(problem, TensorRole::kDV, args.dv));
  add_amax("amax_dq", "amax_gradients", problem.amax_gradients, args.amax_dq, uses);
  add_amax("amax_dk", "amax_gradients", problem.amax_gradients, args.amax_dk, uses);
  add_amax("amax_dv", "amax_gradients", problem.amax_gradients, args.amax_dv, uses);
  call.d_operands = bind_gradients(problem, args.d_operands, uses);
  add_workspace(workspace, workspace_bytes, uses);
  call.parameters = check_options(problem, args.options);
  check_buffers(uses, memory);
  check_operand_data(problem, call.operands, memory);
  call.tensors = {args.q.data,
                  args.k.data,
                  args.v.data,
                  args.o.data,
                  static_cast<const float*>(args.lse.data),
                  args.d_o.data,
                  call.operands,
                  args.dq.data,
                  args.dk.data,
                  args.dv.data,
                  call.d_operands,
                  static_cast<float*>(args.amax_dq.data),
                  static_cast<float*>(args.amax_dk.data),
                  static_cast<float*>(args.amax_dv.data)};
  return call;
}

}  // namespace scoremod::runtime
