#include "check/problem_slice.hpp"

#include <array>

#include "base/fail.hpp"

namespace scoremod::checking {
namespace {

using problem::TensorRole;

/// Key/value heads that the box's heads read.
Range kv_heads(const AttentionProblem& problem, const Range& heads) {
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const Range read{heads.begin / group, (heads.begin + heads.count - 1) / group - heads.begin / group + 1};
  const bool is_whole = heads.begin % group == 0 && heads.count % group == 0;
  if (!is_whole && read.count > 1) fail_bug("a slice of a problem has parts of several groups of heads");
  return read;
}

const std::byte* at(const void* data, const TensorSlice& slice) {
  if (data == nullptr) return nullptr;
  return static_cast<const std::byte*>(data) + slice.begin * static_cast<std::int64_t>(size_of(slice.tensor.dtype));
}

TensorLayout layout_of(const TensorSlice& slice) {
  const std::vector<std::int64_t>& strides = slice.tensor.strides;
  return {Layout::kBSHD, Strides{strides[0], strides[1], strides[2], strides[3]}};
}

/// The problem of a box: sizes alone; the reference's functions look at no layout of a gradient.
AttentionProblem problem_of(AttentionProblem problem, const Box& box) {
  problem.batch = box.b.count;
  problem.heads_kv = kv_heads(problem, box.h).count;
  problem.heads_q = box.h.count;
  problem.seq_q = box.q.count;
  problem.seq_kv = box.kv.count;
  problem.index_offsets = true;
  problem.o = {Layout::kBHSD, {}};
  problem.dq = problem.dk = problem.dv = std::nullopt;
  return problem;
}

}  // namespace

Box whole(const AttentionProblem& problem) {
  return {{0, problem.batch}, {0, problem.heads_q}, {0, problem.seq_q}, {0, problem.seq_kv}};
}

TensorSlice slice_of(const AttentionProblem& problem, TensorRole role, const Box& box) {
  const bool of_queries = problem::is_query_like(role);
  const std::array ranges{box.b, of_queries ? box.h : kv_heads(problem, box.h), of_queries ? box.q : box.kv};
  TensorSlice slice{problem::tensor_of(problem::to_string(role), problem, role), 0};
  for (std::size_t d = 0; d < ranges.size(); ++d) {
    slice.tensor.shape[d] = ranges[d].count;
    slice.begin += ranges[d].begin * slice.tensor.strides[d];
  }
  return slice;
}

TensorSlice slice_of(const AttentionProblem& problem, std::uint32_t operand, const Box& box) {
  const OperandDecl& decl = problem.program.operands().at(operand);
  TensorSlice slice{problem::tensor_of(decl.name, problem::spec_of(problem, operand)), 0};
  if (decl.is_table()) return slice;
  const std::array ranges{box.b, box.h, box.q, box.kv};
  std::size_t d = 0;
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (!decl.axes[axis]) continue;
    slice.tensor.shape[d] = ranges[axis].count;
    slice.begin += ranges[axis].begin * slice.tensor.strides[d];
    ++d;
  }
  return slice;
}

ProblemSlice::ProblemSlice(const compiler::CompiledProblem& compiled, const backend::reference::InputTensors& memory,
                           const backend::CallParameters& parameters, const Box& box)
    : parameters_(parameters) {
  const AttentionProblem& of = compiled.problem;
  AttentionProblem small = problem_of(of, box);
  const TensorSlice q = slice_of(of, TensorRole::kQ, box), k = slice_of(of, TensorRole::kK, box);
  const TensorSlice v = slice_of(of, TensorRole::kV, box), d_o = slice_of(of, TensorRole::kDO, box);
  small.q = layout_of(q);
  small.k = layout_of(k);
  small.v = layout_of(v);
  small.d_o = layout_of(d_o);
  for (std::uint32_t i = 0; i < of.program.operands().size(); ++i) {
    const TensorSlice operand = slice_of(of, i, box);
    operands_.push_back(at(memory.operands[i], operand));
    for (OperandSpec& spec : small.operands) {
      if (spec.name != operand.tensor.name) continue;
      spec.shape = operand.tensor.shape;
      spec.strides = operand.tensor.strides;
    }
  }
  inputs_ = {at(memory.q, q), at(memory.k, k), at(memory.v, v), at(memory.d_o, d_o), operands_};
  compiled_ = compiler::resized(compiled, std::move(small));
  IndexOffsets& offsets = parameters_.offsets;
  offsets.batch += static_cast<std::int32_t>(box.b.begin);
  offsets.head += static_cast<std::int32_t>(box.h.begin);
  offsets.query += static_cast<std::int32_t>(box.q.begin);
  offsets.key += static_cast<std::int32_t>(box.kv.begin);
}

void ProblemSlice::give(DType dtype_o, const void* o, const float* lse) {
  AttentionProblem& small = compiled_.problem;
  small.dtype_d_o = problem::dtype_of(small, TensorRole::kDO);
  small.dtype_o = dtype_o;
  small.given_deltas = true;
  inputs_.o = o;
  inputs_.lse = lse;
}

}  // namespace scoremod::checking
