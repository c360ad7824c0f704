#pragma once

#include <concepts>
#include <type_traits>

#include "scoremod/problem.hpp"

#include "problem/problem_topics.hpp"

namespace scoremod::problem {

// Everything that visits all members of a problem does it here: its JSON in both directions, its canonical bytes.
// Structured bindings name each member. So a new member does not compile until it is visited, and until every visitor
// has an overload for its type.

template <class T, class Plain>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Plain>;

/// Calls visit(name, member) for every member. The names are those of the struct, and of the fields of problem files.
/// The order is that of canonical bytes, which stored plans are found by.
template <MaybeConst<AttentionProblem> Problem, class Visitor>
void visit_members(Problem& problem, Visitor&& visit) {
  static_assert(
      kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions, BackwardOptions, ScoreProgram>);
  auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged, lengths, index_offsets] =
      topic<Sequences>(problem);
  auto& [dtype, dtype_kv, dtype_o, dtype_d_o, dtype_gradients] = topic<TensorDTypes>(problem);
  auto& [q, k, v, o, d_o, dq, dk, dv] = topic<TensorLayouts>(problem);
  auto& [scale, sink, dropout, dropout_keys] = topic<SoftmaxOptions>(problem);
  auto& [stats, max_logit, amax_o] = topic<OutputOptions>(problem);
  auto& [backward, given_deltas, deterministic, amax_gradients] = topic<BackwardOptions>(problem);
  auto& [program, operands] = topic<ScoreProgram>(problem);
  visit("batch", batch);
  visit("heads_q", heads_q);
  visit("heads_kv", heads_kv);
  visit("seq_q", seq_q);
  visit("seq_kv", seq_kv);
  visit("dim_qk", dim_qk);
  visit("dim_v", dim_v);
  visit("tokens_q", tokens_q);
  visit("tokens_kv", tokens_kv);
  visit("paged", paged);
  visit("dtype", dtype);
  visit("dtype_kv", dtype_kv);
  visit("dtype_o", dtype_o);
  visit("dtype_d_o", dtype_d_o);
  visit("dtype_gradients", dtype_gradients);
  visit("q", q);
  visit("k", k);
  visit("v", v);
  visit("o", o);
  visit("d_o", d_o);
  visit("dq", dq);
  visit("dk", dk);
  visit("dv", dv);
  visit("scale", scale);
  visit("lengths", lengths);
  visit("sink", sink);
  visit("dropout", dropout);
  visit("dropout_keys", dropout_keys);
  visit("given_deltas", given_deltas);
  visit("program", program);
  visit("operands", operands);
  visit("backward", backward);
  visit("stats", stats);
  visit("max_logit", max_logit);
  visit("amax_o", amax_o);
  visit("amax_gradients", amax_gradients);
  visit("index_offsets", index_offsets);
  visit("deterministic", deterministic);
}

template <MaybeConst<TensorLayout> Tensor, class Visitor>
void visit_members(Tensor& tensor, Visitor&& visit) {
  auto& [layout, strides] = tensor;
  visit("layout", layout);
  visit("strides", strides);
}

template <MaybeConst<SequenceLengths> Lengths, class Visitor>
void visit_members(Lengths& lengths, Visitor&& visit) {
  auto& [q, kv] = lengths;
  visit("q", q);
  visit("kv", kv);
}

template <MaybeConst<PagedKeys> Paged, class Visitor>
void visit_members(Paged& paged, Visitor&& visit) {
  auto& [block_size, blocks, blocks_per_sequence] = paged;
  visit("block_size", block_size);
  visit("blocks", blocks);
  visit("blocks_per_sequence", blocks_per_sequence);
}

template <MaybeConst<Strides> Distances, class Visitor>
void visit_members(Distances& distances, Visitor&& visit) {
  auto& [batch, head, sequence, dim] = distances;
  visit("batch", batch);
  visit("head", head);
  visit("sequence", sequence);
  visit("dim", dim);
}

template <MaybeConst<OperandSpec> Operand, class Visitor>
void visit_members(Operand& operand, Visitor&& visit) {
  auto& [name, dtype, shape, strides, gradient] = operand;
  visit("name", name);
  visit("dtype", dtype);
  visit("shape", shape);
  visit("strides", strides);
  visit("gradient", gradient);
}

}  // namespace scoremod::problem
