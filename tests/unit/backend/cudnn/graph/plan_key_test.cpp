#include "backend/cudnn/graph/plan_key.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "base/version.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// A change of one member of a struct, by the member's path.
template <class Struct>
struct Change {
  std::string path;
  std::function<void(Struct&)> apply;
};

template <class Struct>
using Changes = std::vector<Change<Struct>>;

// changes_of() gives, for each struct of a key, a change of each member. The structured binding at its beginning names
// each member, so a new member does not compile until it is changed here too.

Changes<std::array<std::int64_t, 4>> changes_of(const std::array<std::int64_t, 4>&) {
  Changes<std::array<std::int64_t, 4>> changes;
  for (std::size_t i = 0; i < 4; ++i) {
    changes.push_back({"[" + std::to_string(i) + "]", [i](auto& numbers) { ++numbers[i]; }});
  }
  return changes;
}

/// Takes the changes of a member as changes of the struct that holds it.
template <class Struct, class Member, class Access>
void add(Changes<Struct>& changes, const std::string& name, const Changes<Member>& of_member, const Access& access) {
  for (const Change<Member>& change : of_member) {
    changes.push_back({name + "." + change.path, [=](Struct& whole) { change.apply(access(whole)); }});
  }
}

#define SCOREMOD_MEMBER(name) \
#name, changes_of(whole.name), [](auto& w) -> auto& { return w.name; }

Changes<Ref> changes_of(const Ref& whole) {
  [[maybe_unused]] const auto& [kind, index, float_value, int_value] = whole;
  return {{"kind", [](Ref& ref) { ref.kind = ref.kind == Ref::Kind::kScore ? Ref::Kind::kNone : Ref::Kind::kScore; }},
          {"index", [](Ref& ref) { ++ref.index; }},
          {"float_value", [](Ref& ref) { ref.float_value += 1; }},
          {"float_value's sign", [](Ref& ref) { ref.float_value = -ref.float_value; }},
          {"int_value", [](Ref& ref) { ++ref.int_value; }}};
}

Changes<BandEnd> changes_of(const BandEnd& whole) {
  [[maybe_unused]] const auto& [left, bound] = whole;
  return {{"left", [](BandEnd& band) { band.left = !band.left; }}, {"bound", [](BandEnd& band) { ++band.bound; }}};
}

Changes<ModifierNode> changes_of(const ModifierNode& whole) {
  [[maybe_unused]] const auto& [mode, compute, output, inputs, axis, band] = whole;
  Changes<ModifierNode> changes{
      {"mode", [](ModifierNode& node) { node.mode = Mode::kExp; }},
      {"compute", [](ModifierNode& node) { node.compute = ElementType::kBoolean; }},
      {"output", [](ModifierNode& node) { node.output = ElementType::kBoolean; }},
      {"axis", [](ModifierNode& node) { ++node.axis; }},
      {"band", [](ModifierNode& node) { node.band = node.band ? std::nullopt : std::optional(BandEnd{}); }}};
  for (std::size_t i = 0; i < whole.inputs.size(); ++i) {
    add(changes, "inputs[" + std::to_string(i) + "]", changes_of(whole.inputs[i]),
        [i](ModifierNode& node) -> Ref& { return node.inputs[i]; });
  }
  if (whole.band) {
    add(changes, "band", changes_of(*whole.band), [](ModifierNode& node) -> BandEnd& { return *node.band; });
  }
  return changes;
}

Changes<ModifierTensor> changes_of(const ModifierTensor& whole) {
  [[maybe_unused]] const auto& [dims, strides, dtype, by_value] = whole;
  Changes<ModifierTensor> changes{{"dtype", [](ModifierTensor& tensor) { tensor.dtype = DType::kF16; }},
                                  {"by_value", [](ModifierTensor& tensor) { tensor.by_value = !tensor.by_value; }}};
  add(changes, SCOREMOD_MEMBER(dims));
  add(changes, SCOREMOD_MEMBER(strides));
  return changes;
}

Changes<ModifierGraph> changes_of(const ModifierGraph& whole) {
  [[maybe_unused]] const auto& [tensors, nodes, forward_count, value, d_score] = whole;
  Changes<ModifierGraph> changes{
      {"tensors + 1", [](ModifierGraph& graph) { graph.tensors.emplace_back(); }},
      {"tensors - 1", [](ModifierGraph& graph) { graph.tensors.pop_back(); }},
      {"tensors swapped", [](ModifierGraph& graph) { std::swap(graph.tensors[0], graph.tensors[1]); }},
      {"nodes + 1", [](ModifierGraph& graph) { graph.nodes.emplace_back(); }},
      {"nodes - 1", [](ModifierGraph& graph) { graph.nodes.pop_back(); }},
      {"nodes swapped", [](ModifierGraph& graph) { std::swap(graph.nodes[0], graph.nodes[1]); }},
      {"forward_count", [](ModifierGraph& graph) { ++graph.forward_count; }}};
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    add(changes, "tensors[" + std::to_string(i) + "]", changes_of(whole.tensors[i]),
        [i](ModifierGraph& graph) -> ModifierTensor& { return graph.tensors[i]; });
  }
  for (std::size_t i = 0; i < whole.nodes.size(); ++i) {
    add(changes, "nodes[" + std::to_string(i) + "]", changes_of(whole.nodes[i]),
        [i](ModifierGraph& graph) -> ModifierNode& { return graph.nodes[i]; });
  }
  add(changes, SCOREMOD_MEMBER(value));
  add(changes, SCOREMOD_MEMBER(d_score));
  return changes;
}

Changes<AttentionTensor> changes_of(const AttentionTensor& whole) {
  [[maybe_unused]] const auto& [dims, strides] = whole;
  Changes<AttentionTensor> changes;
  add(changes, SCOREMOD_MEMBER(dims));
  add(changes, SCOREMOD_MEMBER(strides));
  return changes;
}

Changes<SequencePlaces> changes_of(const SequencePlaces& whole) {
  [[maybe_unused]] const auto& [ragged_q, ragged_kv, pages, seq_kv] = whole;
  return {{"ragged_q", [](SequencePlaces& places) { places.ragged_q = !places.ragged_q; }},
          {"ragged_kv", [](SequencePlaces& places) { places.ragged_kv = !places.ragged_kv; }},
          {"pages", [](SequencePlaces& places) { ++places.pages; }},
          {"seq_kv", [](SequencePlaces& places) { ++places.seq_kv; }}};
}

Changes<GradientTensors> changes_of(const GradientTensors& whole) {
  [[maybe_unused]] const auto& [d_o, dq, dk, dv] = whole;
  Changes<GradientTensors> changes;
  add(changes, SCOREMOD_MEMBER(d_o));
  add(changes, SCOREMOD_MEMBER(dq));
  add(changes, SCOREMOD_MEMBER(dk));
  add(changes, SCOREMOD_MEMBER(dv));
  return changes;
}

Changes<BiasGradient> changes_of(const BiasGradient& whole) {
  [[maybe_unused]] const auto& [tensor, dtype] = whole;
  Changes<BiasGradient> changes{{"dtype", [](BiasGradient& gradient) { gradient.dtype = DType::kF16; }}};
  add(changes, SCOREMOD_MEMBER(tensor));
  return changes;
}

Changes<AttentionGraph> changes_of(const AttentionGraph& whole) {
  [[maybe_unused]] const auto& [direction, dtype, q, k, v, o, places, gradients, sink, stats, deterministic,
                                bias_gradient, modifier, engine] = whole;
  Changes<AttentionGraph> changes{
      {"direction", [](AttentionGraph& graph) { graph.direction = Direction::kBackward; }},
      {"dtype", [](AttentionGraph& graph) { graph.dtype = DType::kF16; }},
      {"no gradients", [](AttentionGraph& graph) { graph.gradients.reset(); }},
      {"sink", [](AttentionGraph& graph) { graph.sink = !graph.sink; }},
      {"stats", [](AttentionGraph& graph) { graph.stats = !graph.stats; }},
      {"engine", [](AttentionGraph& graph) { graph.engine = "eng3_k24=36"; }},
      {"deterministic", [](AttentionGraph& graph) { graph.deterministic = !graph.deterministic; }},
      {"no bias_gradient", [](AttentionGraph& graph) { graph.bias_gradient.reset(); }}};
  add(changes, "gradients", changes_of(*whole.gradients),
      [](AttentionGraph& graph) -> GradientTensors& { return *graph.gradients; });
  add(changes, "bias_gradient", changes_of(*whole.bias_gradient),
      [](AttentionGraph& graph) -> BiasGradient& { return *graph.bias_gradient; });
  add(changes, SCOREMOD_MEMBER(q));
  add(changes, SCOREMOD_MEMBER(k));
  add(changes, SCOREMOD_MEMBER(v));
  add(changes, SCOREMOD_MEMBER(o));
  add(changes, SCOREMOD_MEMBER(places));
  add(changes, SCOREMOD_MEMBER(modifier));
  return changes;
}

Changes<PlanDevice> changes_of(const PlanDevice& whole) {
  [[maybe_unused]] const auto& [compute_capability, name, multiprocessors, shared_memory, l2_cache] = whole;
  return {{"compute_capability", [](PlanDevice& device) { ++device.compute_capability; }},
          {"name", [](PlanDevice& device) { device.name += "x"; }},
          {"multiprocessors", [](PlanDevice& device) { ++device.multiprocessors; }},
          {"shared_memory_per_block", [](PlanDevice& device) { ++device.shared_memory_per_block; }},
          {"l2_cache_bytes", [](PlanDevice& device) { ++device.l2_cache_bytes; }}};
}

Changes<PlanKey> changes_of(const PlanKey& whole) {
  [[maybe_unused]] const auto& [graph, device, cudnn_version, frontend_version, library_version, revision] = whole;
  Changes<PlanKey> changes{{"cudnn_version", [](PlanKey& key) { ++key.cudnn_version; }},
                           {"frontend_version", [](PlanKey& key) { ++key.frontend_version; }},
                           {"library_version", [](PlanKey& key) { key.library_version += ".1"; }},
                           {"revision", [](PlanKey& key) { ++key.revision; }}};
  add(changes, SCOREMOD_MEMBER(graph));
  add(changes, SCOREMOD_MEMBER(device));
  return changes;
}

Changes<LoadedPlanKey> changes_of(const LoadedPlanKey& whole) {
  [[maybe_unused]] const auto& [plan, device_ordinal, context] = whole;
  Changes<LoadedPlanKey> changes{{"device_ordinal", [](LoadedPlanKey& key) { ++key.device_ordinal; }},
                                 {"context", [](LoadedPlanKey& key) { ++key.context; }}};
  add(changes, SCOREMOD_MEMBER(plan));
  return changes;
}

#undef SCOREMOD_MEMBER

/// A key with something in every place: a relative bias under a causal band.
PlanKey example() {
  PlanKey key;
  AttentionGraph& graph = key.graph;
  graph.q = {{2, 4, 256, 64}, {65536, 64, 256, 1}};
  graph.k = graph.v = {{2, 2, 320, 64}, {40960, 64, 128, 1}};
  graph.o = graph.q;
  graph.gradients = GradientTensors{graph.o, graph.q, graph.k, graph.v};
  graph.bias_gradient = BiasGradient{{{1, 4, 256, 320}, {327680, 81920, 320, 1}}, DType::kBF16};
  ModifierTensor slopes{{1, 4, 1, 1}, {4, 1, 1, 1}, DType::kF32, false};
  ModifierTensor offset{{1, 1, 1, 1}, {1, 1, 1, 1}, DType::kI32, true};
  graph.modifier.tensors = {slopes, offset};
  const Ref score{Ref::Kind::kScore, 0, 0, 0};
  const Ref tensor{Ref::Kind::kTensor, 0, 0, 0};
  const Ref constant{Ref::Kind::kFloat, 0, 0.5f, 0};
  const Ref first{Ref::Kind::kNode, 0, 0, 0};
  const Ref second{Ref::Kind::kNode, 1, 0, 0};
  graph.modifier.nodes = {
      {Mode::kMul, ElementType::kFloat, ElementType::kFloat, {score, tensor, {}}, 0, {}},
      {Mode::kAdd, ElementType::kFloat, ElementType::kFloat, {first, constant, {}}, 0, {}},
      {Mode::kBand, ElementType::kFloat, ElementType::kFloat, {second, {}, {}}, 0, BandEnd{false, 3}}};
  graph.modifier.forward_count = 2;
  graph.modifier.value = {Ref::Kind::kNode, 2, 0, 0};
  graph.modifier.d_score = {Ref::Kind::kNode, 1, 0, 0};
  key.device = plan_device({"", "NVIDIA H200", 90, 132, 232448, 62914560, {}});
  key.cudnn_version = 91900;
  return key;
}

TEST(PlanKey, EveryFieldChangesIt) {
  const LoadedPlanKey key{example(), 0, 0};
  const Bytes bytes = canonical_bytes(key);
  std::map<Bytes, std::string> seen{{bytes, "nothing"}};
  const Changes<LoadedPlanKey> changes = changes_of(key);
  EXPECT_GT(changes.size(), 100);
  for (const Change<LoadedPlanKey>& change : changes) {
    LoadedPlanKey changed = key;
    change.apply(changed);
    if (changed == key) {
      // Only differences that equality does not see, such as the sign of a zero, may leave the key unchanged.
      EXPECT_NE(change.path.find("sign"), std::string::npos) << change.path << " changed nothing";
    }
    const auto [other, is_new] = seen.emplace(canonical_bytes(changed), change.path);
    EXPECT_TRUE(is_new) << "'" << change.path << "' gives the key of '" << other->second << "'";
  }
}

TEST(PlanKey, IsTheSameForEqualValues) {
  EXPECT_EQ(canonical_bytes(example()), canonical_bytes(example()));
  EXPECT_EQ(canonical_bytes(LoadedPlanKey{example(), 1, 2}), canonical_bytes(LoadedPlanKey{example(), 1, 2}));
}

TEST(PlanKey, TellsFloatsByTheirBits) {
  const auto key_with = [](float value) {
    PlanKey key = example();
    key.graph.modifier.nodes[1].inputs[1].float_value = value;
    return canonical_bytes(key);
  };
  EXPECT_NE(key_with(0.0f), key_with(-0.0f));
  EXPECT_EQ(key_with(std::nanf("")), key_with(std::nanf("")));
  EXPECT_NE(key_with(1.0f), key_with(std::nextafter(1.0f, 2.0f)));
}

TEST(PlanKey, CarriesTheVersionsOfThisLibrary) {
  EXPECT_EQ(PlanKey().library_version, version());
  EXPECT_GE(PlanKey().frontend_version, 10000);
  EXPECT_EQ(PlanKey().revision, kPlanRevision);
}

TEST(PlanKey, RuntimeArgumentsAreNotInIt) {
  // The scale is the problem's only value of that sort: scalars, offsets and pointers come with the call alone.
  AttentionProblem problem;
  problem.batch = 1;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = problem.seq_kv = 128;
  problem.dtype = DType::kBF16;
  const auto bytes_of = [](const AttentionProblem& p) {
    PlanKey key = example();
    key.graph = attention_graph(p, Direction::kForward, {});
    return canonical_bytes(key);
  };
  AttentionProblem scaled = problem;
  scaled.scale = 0.123f;
  EXPECT_NE(scaled.scale, problem.scale);
  EXPECT_EQ(bytes_of(scaled), bytes_of(problem));
  AttentionProblem longer = problem;
  longer.seq_q = 256;
  EXPECT_NE(bytes_of(longer), bytes_of(problem));
}

TEST(PlanKey, TakesFromADeviceWhatDecidesPlans) {
  const PlanDevice device = example().device;
  EXPECT_EQ(device.compute_capability, 90);
  EXPECT_EQ(device.name, "NVIDIA H200");
  EXPECT_EQ(device.multiprocessors, 132);
  EXPECT_EQ(device.shared_memory_per_block, 232448);
  EXPECT_EQ(device.l2_cache_bytes, 62914560);
  // The rest of cuDNN's description of a device, such as its place in the machine, differs between devices of one
  // model.
  EXPECT_EQ(plan_device({"{\"pciDeviceId\":7}", "NVIDIA H200", 90, 132, 232448, 62914560, {}}), device);
}

TEST(PlanKey, DescribesItselfToPeople) {
  EXPECT_EQ(architecture_text(example().device), "sm_90 NVIDIA H200");
  EXPECT_EQ(plan_label(example().graph), "forward bf16 b2 h4/2 s256x320 d64/64, 3 modifier nodes, gradient of a bias");
}

}  // namespace
}  // namespace scoremod::backend::cudnn
