// Answers of cudnn-frontend, held so that a version which answers otherwise is seen. Its key of a graph does not cover
// the score modifier, which is a function: plans that were kept under it would run for other modifiers. And it has no
// padding mask beside a modifier.

#include "backend/cudnn/graph/frontend_graph.hpp"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "backend/cuda/device/load_stub_driver.hpp"
#include "backend/cudnn/graph/frontend_engine.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/plan_key.hpp"

namespace scoremod::backend::cudnn {
namespace {

AttentionGraph graph_with(const ModifierNode& node) {
  AttentionGraph graph;
  graph.q = graph.k = graph.v = graph.o = {{2, 4, 256, 64}, {65536, 64, 256, 1}};
  graph.modifier.nodes = {node};
  graph.modifier.forward_count = 1;
  graph.modifier.value = {Ref::Kind::kNode, 0, 0, 0};
  return graph;
}

/// The frontend's key, once the frontend has called the modifier's functions.
std::size_t frontend_key(const AttentionGraph& spec) {
  Graph graph;
  graph.set_sm_version(90);  // or the frontend looks for a device
  fill_graph(spec, graph);
  const auto status = graph.validate();
  EXPECT_TRUE(status.is_good()) << status.err_msg;
  return graph.key();
}

Bytes own_key(const AttentionGraph& graph) {
  PlanKey key;
  key.graph = graph;
  return canonical_bytes(key);
}

/// The frontend asks cuDNN for its version. No device and no driver are needed.
class FrontendGraph : public testing::Test {
 protected:
  void SetUp() override {
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
    if (fe::cudnn_dlhandle == nullptr) GTEST_SKIP() << dlerror();
  }
};
using FrontendKey = FrontendGraph;

TEST_F(FrontendKey, ConfusesGraphsThatThePlanKeyTellsApart) {
  const Ref score{Ref::Kind::kScore, 0, 0, 0};
  const Ref two{Ref::Kind::kFloat, 0, 2.0f, 0}, three{Ref::Kind::kFloat, 0, 3.0f, 0};
  const ModifierNode doubled{Mode::kMul, ElementType::kFloat, ElementType::kFloat, {score, two, {}}, 0, {}};
  const ModifierNode raised{Mode::kAdd, ElementType::kFloat, ElementType::kFloat, {score, three, {}}, 0, {}};
  const AttentionGraph one = graph_with(doubled), other = graph_with(raised);
  EXPECT_EQ(frontend_key(one), frontend_key(other)) << "the frontend has learned it: this test may go";
  EXPECT_NE(own_key(one), own_key(other));
  EXPECT_EQ(own_key(one), own_key(graph_with(doubled)));
  AttentionGraph longer = one;
  longer.q.dims[2] = longer.o.dims[2] = 128;
  EXPECT_NE(frontend_key(one), frontend_key(longer)) << "it is no constant";
}

/// A forward or backward whose modifier doubles the scores, with keys in pages or with varlen tensors.
AttentionGraph placed_graph(Direction direction, const SequencePlaces& places) {
  AttentionGraph graph = graph_with({Mode::kMul,
                                     ElementType::kFloat,
                                     ElementType::kFloat,
                                     {Ref{Ref::Kind::kScore, 0, 0, 0}, Ref{Ref::Kind::kFloat, 0, 2.0f, 0}, {}},
                                     0,
                                     {}});
  graph.direction = direction;
  graph.places = places;
  if (places.pages > 0) graph.k = graph.v = {{30, 4, 16, 64}, {4096, 64, 256, 1}};
  if (direction == Direction::kBackward) graph.gradients = {graph.o, graph.q, graph.k, graph.v};
  return graph;
}

constexpr SequencePlaces kVarlen{true, true, 0, 0}, kVarlenKeys{false, true, 0, 0}, kPages{false, false, 16, 256},
    kVarlenOverPages{true, false, 16, 256};

/// The frontend's words on a graph, after a change of its attributes.
std::string words_on(const AttentionGraph& spec, int capability) {
  Graph graph;
  graph.set_sm_version(capability);
  fill_graph(spec, graph);
  const auto status = graph.validate();
  return status.is_bad() ? status.err_msg : std::string();
}

TEST_F(FrontendGraph, TakesLengthsBesideAModifierWithoutAPaddingMask) {
  for (const SequencePlaces& places : {kVarlen, kVarlenKeys, kPages, kVarlenOverPages}) {
    for (const int capability : {80, 90, 100, 120})
      EXPECT_EQ(words_on(placed_graph(Direction::kForward, places), capability), "") << capability;
  }
  for (const int capability : {90, 100})
    EXPECT_EQ(words_on(placed_graph(Direction::kBackward, kVarlen), capability), "");
  for (const int capability : {80, 120}) {
    EXPECT_EQ(words_on(placed_graph(Direction::kBackward, kVarlenKeys), capability), "");
    const std::string words = words_on(placed_graph(Direction::kBackward, kVarlen), capability);
    EXPECT_NE(words.find("Packed/ragged LSE is not supported for bprop thd"), std::string::npos) << words;
  }
}

TEST_F(FrontendGraph, HasLengthsAndPlacesWhereTheGraphHas) {
  const auto has = [](const AttentionGraph& spec, std::int64_t uid) {
    Graph graph;
    fill_graph(spec, graph);
    fe::graph::Tensor_attributes tensor;
    return graph.query_tensor_attributes_of_uid(uid, tensor).is_good();
  };
  const AttentionGraph dense = placed_graph(Direction::kBackward, {});
  EXPECT_FALSE(has(dense, kUidLengthsQ) || has(dense, kUidPlaces + kUidQ));
  const AttentionGraph varlen = placed_graph(Direction::kBackward, kVarlen);
  for (const Uid uid : {kUidQ, kUidK, kUidV, kUidO, kUidStats, kUidDO, kUidDQ, kUidDK, kUidDV})
    EXPECT_TRUE(has(varlen, kUidPlaces + uid)) << uid;
  EXPECT_TRUE(has(varlen, kUidLengthsQ) && has(varlen, kUidLengthsKv));
  const AttentionGraph keys = placed_graph(Direction::kForward, kVarlenKeys);
  EXPECT_TRUE(has(keys, kUidPlaces + kUidV));
  EXPECT_FALSE(has(keys, kUidPlaces + kUidO));
  const AttentionGraph pages = placed_graph(Direction::kForward, kPages);
  EXPECT_TRUE(has(pages, kUidPagesK) && has(pages, kUidPagesV) && has(pages, kUidLengthsKv));
  EXPECT_FALSE(has(pages, kUidPlaces + kUidK));
}

/// The padding mask, which would mask keys behind a sequence's end. The lowering's own mask does it in its place.
TEST_F(FrontendGraph, RefusesAPaddingMaskBesideAModifier) {
  Graph graph;
  graph.set_sm_version(90);
  const AttentionGraph spec = placed_graph(Direction::kForward, kVarlen);
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  auto attributes = fe::graph::SDPA_attributes().set_generate_stats(false).set_attn_scale(0.125f);
  attributes.set_score_mod([](const std::shared_ptr<Graph>&, Tensor score) { return score; });
  attributes.set_padding_mask(true);
  set_lengths(spec, graph, attributes);
  auto [o, stats] = graph.sdpa(attention_tensor(graph, spec.q, kUidQ), attention_tensor(graph, spec.k, kUidK),
                               attention_tensor(graph, spec.v, kUidV), attributes);
  mark_output(o, spec.o, kUidO);
  const auto status = graph.validate();
  EXPECT_NE(status.err_msg.find("Attention score mod enabled and hence other subgraphs are disabled"),
            std::string::npos)
      << "the frontend has learned it: " << status.err_msg;
}

/// Builds by heuristics of which the first name no engine, and tells the engine. Ends the process: the stub driver that
/// is loaded stays for all of it.
[[noreturn]] void build_by(const std::vector<fe::HeurMode_t>& heuristics) {
  cuda::load_stub_driver();
  fe::cudnn_dlhandle = library().cudnn;
  std::ifstream file(SCOREMOD_DEVICES_FOLDER "/h200.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto properties = std::make_shared<fe::DeviceProperties>();
  Graph graph;
  if (properties->deserialize({text.begin(), text.end()}).is_bad()) std::_Exit(2);
  graph.set_sm_version(90).set_device_properties(properties);
  const AttentionGraph spec = placed_graph(Direction::kForward, {});  // which the graph's functions read
  fill_graph(spec, graph);
  if (graph.validate().is_bad() || graph.build_operation_graph(nullptr).is_bad()) std::_Exit(3);
  EngineBuild engine(graph, {}, heuristics);
  const auto none = engine.run();
  std::cerr << (none ? none->text : engine.built()) << "; " << engine.next().size() << " behind\n";
  std::_Exit(none ? 1 : 0);
}

TEST(EngineBuild, TakesAnEngineOfOtherHeuristicsWhereTheFirstNameNone) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has a CUDA driver";
  if (!library().available) GTEST_SKIP() << library().reason;
  // cuDNN's open-source engines are none of attention's.
  constexpr fe::HeurMode_t kNone = fe::HeurMode_t::OPENSOURCE, kFallback = fe::HeurMode_t::FALLBACK;
  EXPECT_EXIT(build_by({kNone, kFallback}), testing::ExitedWithCode(0), "eng[0-9]+; 0 behind");
  EXPECT_EXIT(build_by({kNone}), testing::ExitedWithCode(1), "");
}

TEST(EngineConfig, IsReadFromItsName) {
  const auto config = engine_config("eng3_k24=36_k2=1");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->engine, 3);
  EXPECT_EQ(config->knobs.size(), 2);
  EXPECT_EQ(config->knobs.at(fe::convert_from_backend_knob_type(static_cast<cudnnBackendKnobType_t>(24))), 36);
  EXPECT_EQ(engine_config("eng12").value().engine, 12);
  for (const char* other : {"", "eng", "3_k24=36", "eng3_k24", "eng3_k24=", "eng3k24=36", "eng3_k24=36 "})
    EXPECT_FALSE(engine_config(other)) << other;
}

}  // namespace
}  // namespace scoremod::backend::cudnn
