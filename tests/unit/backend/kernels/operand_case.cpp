#include "unit/backend/kernels/operand_case.hpp"

#include <cstring>

#include "scoremod/inputs.hpp"

#include "backend/kernels/hopper/family.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/call_tensors.hpp"

namespace scoremod::backend::kernels {
namespace {

CompileOptions on_the_host() {
  CompileOptions options;
  options.backend = "cpu";
  return options;
}

std::vector<std::vector<std::byte>> bytes_of(std::span<const OperandGradient> gradients) {
  std::vector<std::vector<std::byte>> all;
  for (const OperandGradient& gradient : gradients) {
    const auto* const data = static_cast<const std::byte*>(gradient.buffer.data);
    all.emplace_back(data, data + gradient.buffer.bytes);
  }
  return all;
}

}  // namespace

EmulatedOperands::EmulatedOperands(const compiler::CompiledProblem& compiled, const AnyShape& shape, const Fault& fault,
                                   Gains gains)
    : compiled_(compiled),
      problem_(compiled.problem),
      host_(Attention::compile(compiled.problem, on_the_host())),
      gradients_(compiled, operand_targets(compiled, problem::operands_with_gradient(compiled.problem), gains), shape,
                 fault, gains) {}

checking::Subject EmulatedOperands::subject() {
  checking::Subject subject = checking::subject_of(host_, compiled_);
  subject.backend = "emulated operand kernels";
  workspace_.resize(gradients_.kernels().workspace_bytes() / sizeof(Line) + 1);
  subject.backward = [this, whole = subject.backward](const BackwardArgs& args, Buffer workspace) {
    BackwardArgs attention = args;
    attention.d_operands = {};
    whole(attention, workspace);
    std::memset(workspace_.data(), 0xff, workspace_.size() * sizeof(Line));  // NaN
    const Buffer own{workspace_.data(), workspace_.size() * sizeof(Line)};
    const auto call = runtime::check_call(problem_, args, own, gradients_.kernels().workspace_bytes(), host_memory());
    const auto run = [&](unsigned seed) {
      gradients_.run(gradients_.kernels().arguments(call.tensors, call.parameters, static_cast<std::byte*>(own.data)),
                     seed);
    };
    run(1);
    if (!twice_) return;
    const auto first = bytes_of(args.d_operands);
    run(2);
    same_bits_ = bytes_of(args.d_operands) == first;
  };
  return subject;
}

void ragged(AttentionProblem& p) {
  p.tokens_q = p.batch * p.seq_q * 3 / 5;
  p.tokens_kv = p.batch * p.seq_kv * 3 / 5;
  p.q = p.o = p.k = p.v = {Layout::kTHD, {}};
  p.index_offsets = false;
}
void with_given_deltas(AttentionProblem& p) { p.given_deltas = true; }
void of_wider_heads(AttentionProblem& p) { p.dim_qk = 72; }
void that_are_copied(AttentionProblem& p) {
  of_wider_heads(p);
  p.index_offsets = false;
}
void in_floats(AttentionProblem& p) { p.dtype = DType::kF32; }
void with_given_deltas_of_floats(AttentionProblem& p) {
  with_given_deltas(p);
  p.dtype_o = DType::kF32;
}

AttentionProblem problem_of(const OperandCase& from) {
  AttentionProblem p;
  p.batch = from.batch;
  p.heads_q = from.heads_q;
  p.heads_kv = from.heads_kv;
  p.seq_q = from.seq_q;
  p.seq_kv = from.seq_kv;
  p.dim_qk = 24;
  p.dim_v = 16;
  p.dtype = DType::kBF16;
  p.sink = from.sink;
  p.dropout = from.dropout;
  p.backward = p.stats = p.index_offsets = true;
  p.program = Program::parse(from.program);
  for (const OperandDecl& decl : p.program.operands()) {
    p.operands.push_back(problem::default_spec(p, decl));
    if (decl.is_table()) p.operands.back().shape = {41, p.heads_q};
  }
  for (OperandSpec& operand : p.operands)
    if (operand.name == "half") operand.dtype = DType::kBF16;
  if (from.change != nullptr) from.change(p);
  return problem::with_implied_operands(std::move(p));
}

AnyShape portable(const AttentionProblem& problem) { return portable_shape(problem, Direction::kBackward); }
AnyShape hopper(const AttentionProblem& problem) {
  const std::vector<HopperShape> shapes = hopper_shapes(problem, Direction::kBackward);
  return shapes.front().key_step > kMaxDiagonalStep ? shapes.back() : shapes.front();
}

CheckReport check_of(const OperandCase& from, const Fault& fault, Gains gains, const ShapeOfBackward& shape_of) {
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(from));
  EmulatedOperands emulated(compiled, shape_of(compiled.problem), fault, gains);
  CheckOptions options;
  options.call.dropout_seed = 77;
  options.call.offsets = from.offsets;
  return checking::check_subject(compiled, emulated.subject(), random_inputs(compiled.problem), options);
}

}  // namespace scoremod::backend::kernels
