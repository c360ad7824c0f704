#include "backend/cudnn/graph/plan_key.hpp"

#include <array>
#include <cudnn_frontend_version.h>
#include <optional>
#include <vector>

#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "base/version.hpp"

namespace scoremod::backend::cudnn {
namespace {

// Structured bindings name every member of each struct here: a member that is added does not compile until it is
// written too.

const char* to_string(Direction direction) {
  switch (direction) {
    case Direction::kForward: return "forward";
    case Direction::kBackward: return "backward";
  }
  fail_bug("no name for this direction");
}

const char* to_string(Ref::Kind kind) {
  switch (kind) {
    case Ref::Kind::kNone: return "none";
    case Ref::Kind::kScore: return "score";
    case Ref::Kind::kUpstream: return "upstream";
    case Ref::Kind::kNode: return "node";
    case Ref::Kind::kTensor: return "tensor";
    case Ref::Kind::kFloat: return "float";
    case Ref::Kind::kInt32: return "int32";
  }
  fail_bug("no name for this kind of reference");
}

void write(CanonicalWriter& out, const std::array<std::int64_t, 4>& numbers) {
  for (const std::int64_t number : numbers) out.integer(number);
}

void write(CanonicalWriter& out, const Ref& ref) {
  const auto& [kind, index, float_value, int_value] = ref;
  out.text(to_string(kind)).integer(index).real(float_value).integer(int_value);
}

void write(CanonicalWriter& out, const BandEnd& band) {
  const auto& [left, bound] = band;
  out.boolean(left).integer(bound);
}

void write(CanonicalWriter& out, const ModifierNode& node) {
  const auto& [mode, compute, output, inputs, axis, band] = node;
  out.text(to_string(mode)).text(to_string(compute)).text(to_string(output));
  for (const Ref& input : inputs) write(out, input);
  out.integer(axis).boolean(band.has_value());
  if (band) write(out, *band);
}

void write(CanonicalWriter& out, const ModifierTensor& tensor) {
  const auto& [dims, strides, dtype, by_value] = tensor;
  write(out, dims);
  write(out, strides);
  out.text(scoremod::to_string(dtype)).boolean(by_value);
}

void write(CanonicalWriter& out, const ModifierGraph& modifier) {
  const auto& [tensors, nodes, forward_count, value, d_score] = modifier;
  out.list(tensors.size());
  for (const ModifierTensor& tensor : tensors) write(out, tensor);
  out.list(nodes.size());
  for (const ModifierNode& node : nodes) write(out, node);
  out.integer(forward_count);
  write(out, value);
  write(out, d_score);
}

void write(CanonicalWriter& out, const AttentionTensor& tensor) {
  const auto& [dims, strides] = tensor;
  write(out, dims);
  write(out, strides);
}

void write(CanonicalWriter& out, const SequencePlaces& places) {
  const auto& [ragged_q, ragged_kv, pages, seq_kv] = places;
  out.boolean(ragged_q).boolean(ragged_kv).integer(pages).integer(seq_kv);
}

void write(CanonicalWriter& out, const GradientTensors& gradients) {
  const auto& [d_o, dq, dk, dv] = gradients;
  for (const AttentionTensor* tensor : {&d_o, &dq, &dk, &dv}) write(out, *tensor);
}

void write(CanonicalWriter& out, const BiasGradient& gradient) {
  const auto& [tensor, dtype] = gradient;
  write(out, tensor);
  out.text(scoremod::to_string(dtype));
}

void write(CanonicalWriter& out, const AttentionGraph& graph) {
  const auto& [direction, dtype, q, k, v, o, places, gradients, sink, stats, deterministic, bias_gradient, modifier,
               engine] = graph;
  out.text(to_string(direction)).text(scoremod::to_string(dtype));
  for (const AttentionTensor* tensor : {&q, &k, &v, &o}) write(out, *tensor);
  write(out, places);
  out.boolean(gradients.has_value());
  if (gradients) write(out, *gradients);
  out.boolean(sink).boolean(stats).boolean(deterministic).boolean(bias_gradient.has_value());
  if (bias_gradient) write(out, *bias_gradient);
  write(out, modifier);
  out.text(engine);
}

void write(CanonicalWriter& out, const PlanDevice& device) {
  const auto& [compute_capability, name, multiprocessors, shared_memory, l2_cache] = device;
  out.integer(compute_capability).text(name).integer(multiprocessors).integer(shared_memory).integer(l2_cache);
}

void write(CanonicalWriter& out, const PlanKey& key) {
  const auto& [graph, device, cudnn_version, frontend_version, library_version, revision] = key;
  out.text("scoremod cudnn plan");
  write(out, graph);
  write(out, device);
  out.integer(static_cast<std::int64_t>(cudnn_version)).integer(static_cast<std::int64_t>(frontend_version));
  out.text(library_version).integer(revision);
}

}  // namespace

PlanDevice plan_device(const DeviceProperties& device) {
  return {device.compute_capability, device.name, static_cast<int>(device.multiprocessors),
          device.shared_memory_per_block, device.l2_cache_bytes};
}

PlanKey::PlanKey() : frontend_version(CUDNN_FRONTEND_VERSION), library_version(version()) {}

Bytes canonical_bytes(const PlanKey& key) {
  CanonicalWriter out;
  write(out, key);
  return out.written();
}

Bytes canonical_bytes(const LoadedPlanKey& key) {
  const auto& [plan, device_ordinal, context] = key;
  CanonicalWriter out;
  write(out, plan);
  out.integer(device_ordinal).integer(static_cast<std::int64_t>(context));
  return out.written();
}

std::string architecture_text(const PlanDevice& device) {
  return concat("sm_", device.compute_capability, " ", device.name);
}

std::string plan_label(const AttentionGraph& graph) {
  const auto& q = graph.q.dims;
  const auto& k = graph.k.dims;
  return concat(to_string(graph.direction), " ", scoremod::to_string(graph.dtype), " b", q[0], " h", q[1], "/", k[1],
                " s", q[2], "x", graph.places.pages > 0 ? graph.places.seq_kv : k[2], " d", q[3], "/", graph.v.dims[3],
                ", ", graph.modifier.nodes.size(), " modifier nodes",
                graph.places.ragged_q || graph.places.ragged_kv ? ", varlen" : "",
                graph.places.pages > 0 ? concat(", pages of ", k[2]) : "",
                graph.bias_gradient ? ", gradient of a bias" : "", graph.sink ? ", a sink" : "");
}

}  // namespace scoremod::backend::cudnn
