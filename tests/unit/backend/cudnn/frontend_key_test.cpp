// cudnn-frontend's key of a graph does not cover the score modifier, which is a function. Plans that were kept under it
// would run for other modifiers; scoremod's key tells them apart.

#include <string>

#include <gtest/gtest.h>

#include "backend/cudnn/graph/frontend_graph.hpp"
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

}  // namespace
}  // namespace scoremod::backend::cudnn
