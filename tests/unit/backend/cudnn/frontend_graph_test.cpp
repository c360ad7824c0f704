// Answers of cudnn-frontend, held so that a version which answers otherwise is seen. Its key of a graph does not cover
// the score modifier, which is a function: plans that were kept under it would run for other modifiers. And it has no
// varlen sequences and no paged KV cache beside a modifier.

#include "backend/cudnn/graph/frontend_graph.hpp"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "backend/cudnn/graph/frontend_engine.hpp"
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

TEST(FrontendKey, ConfusesGraphsThatThePlanKeyTellsApart) {
  // The frontend asks cuDNN for its version. No device and no driver are needed.
  fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr) GTEST_SKIP() << dlerror();
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

/// The frontend's words on a forward with a score modifier that does nothing, and with this option.
std::string refusal_beside_a_modifier(
    const std::function<void(Graph&, fe::graph::SDPA_attributes&, const std::function<Tensor(int, int)>&)>& option) {
  Graph graph;
  graph.set_sm_version(90);
  graph.set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const AttentionTensor tensor{{2, 4, 256, 64}, {65536, 64, 256, 1}};
  auto attributes = fe::graph::SDPA_attributes().set_generate_stats(true).set_attn_scale(0.125f);
  attributes.set_score_mod([](const std::shared_ptr<Graph>&, Tensor score) { return score; });
  option(graph, attributes, [&](int uid, int entries) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_uid(uid)
                            .set_dim({2, 1, entries, 1})
                            .set_stride({entries, entries, 1, 1})
                            .set_data_type(fe::DataType_t::INT32));
  });
  auto [o, stats] = graph.sdpa(attention_tensor(graph, tensor, kUidQ), attention_tensor(graph, tensor, kUidK),
                               attention_tensor(graph, tensor, kUidV), attributes);
  mark_output(o, tensor, kUidO);
  stats->set_output(true).set_uid(kUidStats).set_data_type(fe::DataType_t::FLOAT);
  const auto status = graph.validate();
  return status.is_bad() ? status.err_msg : std::string();
}

TEST(FrontendOptions, OfVarlenAndPagedKeysAreRefusedBesideAModifier) {
  fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
  if (fe::cudnn_dlhandle == nullptr) GTEST_SKIP() << dlerror();
  const auto none = [](Graph&, fe::graph::SDPA_attributes&, const auto&) {};
  EXPECT_EQ(refusal_beside_a_modifier(none), "");
  const std::string disabled = "Attention score mod enabled and hence other subgraphs are disabled";
  const auto varlen = [](Graph&, fe::graph::SDPA_attributes& attributes, const auto& tensor) {
    attributes.set_padding_mask(true).set_seq_len_q(tensor(100, 1)).set_seq_len_kv(tensor(101, 1));
  };
  EXPECT_NE(refusal_beside_a_modifier(varlen).find(disabled), std::string::npos) << "varlen sequences can be asked for";
  const auto paged = [](Graph&, fe::graph::SDPA_attributes& attributes, const auto& tensor) {
    attributes.set_paged_attention_k_table(tensor(102, 4)).set_paged_attention_v_table(tensor(103, 4));
    attributes.set_paged_attention_max_seq_len_kv(256);
  };
  EXPECT_NE(refusal_beside_a_modifier(paged), "") << "a paged KV cache can be asked for";
  const auto padded_pages = [&](Graph& graph, fe::graph::SDPA_attributes& attributes, const auto& tensor) {
    paged(graph, attributes, tensor);
    varlen(graph, attributes, tensor);
  };
  EXPECT_NE(refusal_beside_a_modifier(padded_pages).find(disabled), std::string::npos);
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
