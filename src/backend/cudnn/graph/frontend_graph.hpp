#pragma once

// An AttentionGraph in cudnn-frontend's terms. Included by engine.cpp and one test: cudnn_frontend.h takes most of a
// minute to compile.

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

inline fe::DataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return fe::DataType_t::FLOAT;
    case DType::kF16: return fe::DataType_t::HALF;
    case DType::kBF16: return fe::DataType_t::BFLOAT16;
    case DType::kI32: return fe::DataType_t::INT32;
    case DType::kBool: return fe::DataType_t::BOOLEAN;
    case DType::kE4M3: return fe::DataType_t::FP8_E4M3;
    case DType::kE5M2: return fe::DataType_t::FP8_E5M2;
  }
  fail_bug("no cuDNN data type for this dtype");
}

inline fe::DataType_t data_type(ElementType type) {
  switch (type) {
    case ElementType::kFloat: return fe::DataType_t::FLOAT;
    case ElementType::kInt32: return fe::DataType_t::INT32;
    case ElementType::kBoolean: return fe::DataType_t::BOOLEAN;
  }
  fail_bug("no cuDNN data type for this element type");
}

inline fe::PointwiseMode_t pointwise_mode(Mode mode) {
  using M = fe::PointwiseMode_t;
  switch (mode) {
    case Mode::kIdentity: return M::IDENTITY;
    case Mode::kGenIndex: return M::GEN_INDEX;
    case Mode::kAdd: return M::ADD;
    case Mode::kSub: return M::SUB;
    case Mode::kMul: return M::MUL;
    case Mode::kDiv: return M::DIV;
    case Mode::kMod: return M::MOD;
    case Mode::kPow: return M::POW;
    case Mode::kMin: return M::MIN;
    case Mode::kMax: return M::MAX;
    case Mode::kAddSquare: return M::ADD_SQUARE;
    case Mode::kNeg: return M::NEG;
    case Mode::kAbs: return M::ABS;
    case Mode::kFloor: return M::FLOOR;
    case Mode::kCeil: return M::CEIL;
    case Mode::kExp: return M::EXP;
    case Mode::kLog: return M::LOG;
    case Mode::kSqrt: return M::SQRT;
    case Mode::kRsqrt: return M::RSQRT;
    case Mode::kReciprocal: return M::RECIPROCAL;
    case Mode::kSin: return M::SIN;
    case Mode::kCos: return M::COS;
    case Mode::kTan: return M::TAN;
    case Mode::kTanh: return M::TANH_FWD;
    case Mode::kSigmoid: return M::SIGMOID_FWD;
    case Mode::kErf: return M::ERF;
    case Mode::kSoftplus: return M::SOFTPLUS_FWD;
    case Mode::kRelu: return M::RELU_FWD;
    case Mode::kGelu: return M::GELU_FWD;
    case Mode::kGeluTanh: return M::GELU_APPROX_TANH_FWD;
    case Mode::kSwish: return M::SWISH_FWD;
    case Mode::kElu: return M::ELU_FWD;
    case Mode::kCmpEq: return M::CMP_EQ;
    case Mode::kCmpNeq: return M::CMP_NEQ;
    case Mode::kCmpLt: return M::CMP_LT;
    case Mode::kCmpLe: return M::CMP_LE;
    case Mode::kCmpGt: return M::CMP_GT;
    case Mode::kCmpGe: return M::CMP_GE;
    case Mode::kLogicalAnd: return M::LOGICAL_AND;
    case Mode::kLogicalOr: return M::LOGICAL_OR;
    case Mode::kLogicalNot: return M::LOGICAL_NOT;
    case Mode::kBinarySelect: return M::BINARY_SELECT;
    case Mode::kBand: break;
  }
  fail_bug("no pointwise mode for this node");
}

template <std::size_t N>
std::vector<std::int64_t> vector_of(const std::array<std::int64_t, N>& values) {
  return {values.begin(), values.end()};
}

inline Tensor constant(float value) { return std::make_shared<fe::graph::Tensor_attributes>(value); }
inline Tensor constant(std::int32_t value) { return std::make_shared<fe::graph::Tensor_attributes>(value); }

/// Emits a modifier's nodes into a frontend graph. The frontend calls the forward part before the backward one, in the
/// backward graph too, so the backward nodes find the forward results here.
class ModifierEmitter {
 public:
  ModifierEmitter(const ModifierGraph& modifier, Graph& graph) : modifier_(modifier) {
    for (std::size_t i = 0; i < modifier.tensors.size(); ++i) {
      const ModifierTensor& tensor = modifier.tensors[i];
      tensors_.push_back(graph.tensor(fe::graph::Tensor_attributes()
                                          .set_uid(kUidModifierTensor + static_cast<std::int64_t>(i))
                                          .set_dim(vector_of(tensor.dims))
                                          .set_stride(vector_of(tensor.strides))
                                          .set_data_type(data_type(tensor.dtype))
                                          .set_is_pass_by_value(tensor.by_value)));
    }
    results_.resize(modifier.nodes.size());
  }

  Tensor forward(Graph& graph, Tensor score) {
    score_ = std::move(score);
    for (std::size_t i = 0; i < modifier_.forward_count; ++i) results_[i] = emit(graph, modifier_.nodes[i]);
    return resolve(modifier_.value);
  }

  Tensor backward(Graph& graph, Tensor upstream) {
    upstream_ = std::move(upstream);
    for (std::size_t i = modifier_.forward_count; i < modifier_.nodes.size(); ++i) {
      results_[i] = emit(graph, modifier_.nodes[i]);
    }
    return resolve(modifier_.d_score);
  }

 private:
  Tensor resolve(const Ref& ref) const {
    switch (ref.kind) {
      case Ref::Kind::kNone: return nullptr;
      case Ref::Kind::kScore: return score_;
      case Ref::Kind::kUpstream: return upstream_;
      case Ref::Kind::kNode: return results_.at(ref.index);
      case Ref::Kind::kTensor: return tensors_.at(ref.index);
      case Ref::Kind::kFloat: return constant(ref.float_value);
      case Ref::Kind::kInt32: return constant(ref.int_value);
    }
    return nullptr;
  }

  Tensor emit(Graph& graph, const ModifierNode& node) const {
    Tensor result = node.mode == Mode::kBand ? emit_band(graph, node) : emit_pointwise(graph, node);
    result->set_data_type(data_type(node.output));
    return result;
  }

  Tensor emit_pointwise(Graph& graph, const ModifierNode& node) const {
    auto attributes = fe::graph::Pointwise_attributes()
                          .set_mode(pointwise_mode(node.mode))
                          .set_compute_data_type(data_type(node.compute));
    const auto& [a, b, c] = node.inputs;
    if (node.mode == Mode::kGenIndex) {
      attributes.set_axis(node.axis);
      return graph.pointwise(score_, attributes);
    }
    if (b.kind == Ref::Kind::kNone) return graph.pointwise(resolve(a), attributes);
    if (c.kind == Ref::Kind::kNone) return graph.pointwise(resolve(a), resolve(b), attributes);
    return graph.pointwise(resolve(a), resolve(b), resolve(c), attributes);
  }

  Tensor emit_band(Graph& graph, const ModifierNode& node) const {
    const Tensor outside = constant(fe::graph::attn::score_modifiers::get_negative_inf_value());
    const Tensor x = resolve(node.inputs[0]);
    auto attributes = fe::graph::DiagonalBandMask_attributes();
    if (node.band->left) {
      // The frontend takes the left bound as a float.
      return graph.diagonal_band_mask(x, outside, nullptr, nullptr, constant(static_cast<float>(node.band->bound)),
                                      nullptr, attributes.set_comparison_mode(fe::PointwiseMode_t::CMP_GT));
    }
    const Tensor shift = node.band->bound == 0 ? nullptr : constant(static_cast<std::int32_t>(node.band->bound));
    return graph.diagonal_band_mask(x, outside, nullptr, nullptr, nullptr, shift,
                                    attributes.set_comparison_mode(fe::PointwiseMode_t::CMP_GE));
  }

  const ModifierGraph& modifier_;
  std::vector<Tensor> tensors_;
  std::vector<Tensor> results_;
  Tensor score_, upstream_;
};

inline Tensor attention_tensor(Graph& graph, const AttentionTensor& tensor, Uid uid) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim(vector_of(tensor.dims))
                          .set_stride(vector_of(tensor.strides)));
}

inline void mark_output(const Tensor& tensor, const AttentionTensor& like, Uid uid) {
  tensor->set_output(true).set_uid(uid).set_dim(vector_of(like.dims)).set_stride(vector_of(like.strides));
}

/// A dense tensor with `rows` integers for each of `batch`.
inline Tensor integers(Graph& graph, std::int64_t uid, std::int64_t batch, std::int64_t rows, fe::DataType_t type) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({batch, 1, rows, 1})
                          .set_stride({rows, rows, 1, 1})
                          .set_data_type(type));
}

/// Makes a tensor varlen where the graph has it so.
inline void place(const AttentionGraph& spec, Graph& graph, const Tensor& tensor, Uid uid) {
  const bool of_keys = uid == kUidK || uid == kUidV || uid == kUidDK || uid == kUidDV;
  if (!(of_keys ? spec.places.ragged_kv : spec.places.ragged_q)) return;
  tensor->set_ragged_offset(integers(graph, kUidPlaces + uid, spec.q.dims[0] + 1, 1, fe::DataType_t::INT64));
}

/// An input that may be varlen.
inline Tensor input(const AttentionGraph& spec, Graph& graph, const AttentionTensor& tensor, Uid uid) {
  Tensor made = attention_tensor(graph, tensor, uid);
  place(spec, graph, made, uid);
  return made;
}

/// An output that may be varlen.
inline void mark_output(const AttentionGraph& spec, Graph& graph, const Tensor& tensor, const AttentionTensor& like,
                        Uid uid) {
  mark_output(tensor, like, uid);
  place(spec, graph, tensor, uid);
}

/// The lengths of sequences, without the frontend's padding mask, which it refuses beside a modifier. cuDNN then ends
/// its products at the lengths, and the modifier masks the keys behind them.
template <class Attributes>
void set_lengths(const AttentionGraph& spec, Graph& graph, Attributes& attributes) {
  if (!spec.places.any()) return;
  const auto lengths = [&](Uid uid) { return integers(graph, uid, spec.q.dims[0], 1, fe::DataType_t::INT32); };
  attributes.set_seq_len_q(lengths(kUidLengthsQ)).set_seq_len_kv(lengths(kUidLengthsKv));
}

inline void set_pages(const AttentionGraph& spec, Graph& graph, fe::graph::SDPA_attributes& attributes) {
  if (spec.places.pages == 0) return;
  const auto table = [&](Uid uid) {
    return integers(graph, uid, spec.q.dims[0], spec.places.pages, fe::DataType_t::INT32);
  };
  attributes.set_paged_attention_k_table(table(kUidPagesK)).set_paged_attention_v_table(table(kUidPagesV));
  attributes.set_paged_attention_max_seq_len_kv(static_cast<int>(spec.places.seq_kv));
}

inline Tensor scale_tensor(Graph& graph) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(kUidScale)
                          .set_dim({1, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_is_pass_by_value(true)
                          .set_data_type(fe::DataType_t::FLOAT));
}

inline Tensor sink_tensor(Graph& graph, std::int64_t heads) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(kUidSink)
                          .set_dim({1, heads, 1, 1})
                          .set_stride({heads, 1, 1, 1})
                          .set_data_type(fe::DataType_t::FLOAT));
}

inline AttentionTensor stats_tensor(const AttentionGraph& graph) {
  const std::int64_t heads = graph.q.dims[1];
  const std::int64_t rows = graph.q.dims[2];
  if (graph.places.ragged_q) return {{graph.q.dims[0], heads, rows, 1}, {heads * rows, 1, heads, 1}};
  return {{graph.q.dims[0], heads, rows, 1}, {heads * rows, rows, 1, 1}};
}

inline void add_forward(const AttentionGraph& spec, Graph& graph, const std::shared_ptr<ModifierEmitter>& modifier) {
  auto attributes = fe::graph::SDPA_attributes().set_generate_stats(spec.stats).set_attn_scale(scale_tensor(graph));
  attributes.set_score_mod(
      [modifier](const std::shared_ptr<Graph>& g, Tensor score) { return modifier->forward(*g, std::move(score)); });
  if (spec.sink) attributes.set_sink_token(sink_tensor(graph, spec.q.dims[1]));
  set_lengths(spec, graph, attributes);
  set_pages(spec, graph, attributes);
  auto [o, stats] = graph.sdpa(input(spec, graph, spec.q, kUidQ), input(spec, graph, spec.k, kUidK),
                               input(spec, graph, spec.v, kUidV), attributes);
  mark_output(spec, graph, o, spec.o, kUidO);
  if (!spec.stats) return;
  mark_output(spec, graph, stats, stats_tensor(spec), kUidStats);
  stats->set_data_type(fe::DataType_t::FLOAT);
}

inline void add_backward(const AttentionGraph& spec, Graph& graph, const std::shared_ptr<ModifierEmitter>& modifier) {
  auto attributes = fe::graph::SDPA_backward_attributes()
                        .set_attn_scale(scale_tensor(graph))
                        .set_deterministic_algorithm(spec.deterministic);
  attributes.set_score_mod(
      [modifier](const std::shared_ptr<Graph>& g, Tensor score) { return modifier->forward(*g, std::move(score)); });
  if (spec.modifier.d_score.kind != Ref::Kind::kNone) {
    attributes.set_score_mod_bprop(
        [modifier](const std::shared_ptr<Graph>& g, Tensor dp) { return modifier->backward(*g, std::move(dp)); });
  }
  if (spec.bias_gradient) {
    // The gradient of the modifier's bias: the frontend sums the gradient of its result. cuDNN needs no bias input for
    // that.
    const Tensor gradient = attention_tensor(graph, spec.bias_gradient->tensor, kUidDBias);
    gradient->set_data_type(data_type(spec.bias_gradient->dtype));
    attributes.set_dbias(gradient);
  }
  set_lengths(spec, graph, attributes);
  const Tensor stats = input(spec, graph, stats_tensor(spec), kUidStats);
  stats->set_data_type(fe::DataType_t::FLOAT);
  const GradientTensors& gradients = spec.gradients.value();
  auto [dq, dk, dv] = graph.sdpa_backward(input(spec, graph, spec.q, kUidQ), input(spec, graph, spec.k, kUidK),
                                          input(spec, graph, spec.v, kUidV), input(spec, graph, spec.o, kUidO),
                                          input(spec, graph, gradients.d_o, kUidDO), stats, attributes);
  mark_output(spec, graph, dq, gradients.dq, kUidDQ);
  mark_output(spec, graph, dk, gradients.dk, kUidDK);
  mark_output(spec, graph, dv, gradients.dv, kUidDV);
}

/// Fills a frontend graph with the operations of an attention graph. Passes on the frontend's exception if none of its
/// implementations takes a node.
inline void fill_graph(const AttentionGraph& spec, Graph& graph) {
  graph.set_io_data_type(data_type(spec.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto modifier = std::make_shared<ModifierEmitter>(spec.modifier, graph);
  if (spec.direction == Direction::kForward)
    add_forward(spec, graph, modifier);
  else
    add_backward(spec, graph, modifier);
}

}  // namespace scoremod::backend::cudnn
