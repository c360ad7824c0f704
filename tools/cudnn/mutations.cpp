#include "tools/cudnn/mutations.hpp"

#include <algorithm>
#include <utility>

namespace scoremod::explorer {
namespace {

using backend::cudnn::ElementType;
using backend::cudnn::Mode;
using backend::cudnn::ModifierGraph;
using backend::cudnn::ModifierNode;
using backend::cudnn::ModifierTensor;
using backend::cudnn::Ref;

bool is_comparison(Mode mode) { return mode >= Mode::kCmpEq && mode <= Mode::kCmpGe; }
bool is_logical(Mode mode) {
  return mode == Mode::kLogicalAnd || mode == Mode::kLogicalOr || mode == Mode::kLogicalNot;
}

/// Drops the forward nodes that nothing reads any more, so that cuDNN sees only the pattern itself.
void drop_unread(ModifierGraph& graph) {
  std::vector<bool> read(graph.nodes.size(), false);
  const auto mark = [&](const Ref& ref) {
    if (ref.kind == Ref::Kind::kNode) read[ref.index] = true;
  };
  mark(graph.value);
  mark(graph.d_score);
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {
    if (!read[i]) continue;
    for (const Ref& input : graph.nodes[i].inputs) mark(input);
  }
  std::vector<std::uint32_t> new_index(graph.nodes.size(), 0);
  std::vector<ModifierNode> kept;
  std::uint32_t forward_count = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!read[i]) continue;
    new_index[i] = static_cast<std::uint32_t>(kept.size());
    kept.push_back(graph.nodes[i]);
    if (i < graph.forward_count) ++forward_count;
  }
  const auto renumber = [&](Ref& ref) {
    if (ref.kind == Ref::Kind::kNode) ref.index = new_index[ref.index];
  };
  for (ModifierNode& node : kept) {
    for (Ref& input : node.inputs) renumber(input);
  }
  renumber(graph.value);
  renumber(graph.d_score);
  graph.nodes = std::move(kept);
  graph.forward_count = forward_count;
}

}  // namespace

Mutation direct_comparison() {
  return [](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      if (!is_comparison(node.mode) || node.inputs[0].kind != Ref::Kind::kNode) continue;
      const ModifierNode& left = graph.nodes[node.inputs[0].index];
      const bool with_zero = node.inputs[1].kind == Ref::Kind::kInt32 && node.inputs[1].int_value == 0;
      if (left.mode != Mode::kSub || !with_zero) continue;
      const Ref x = left.inputs[0], y = left.inputs[1];
      node.inputs[0] = x;
      node.inputs[1] = y;
    }
    drop_unread(graph);
  };
}

Mutation direct_query_bound() {
  return [](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      if (node.mode != Mode::kCmpNeq || node.inputs[0].kind != Ref::Kind::kNode) continue;
      const ModifierNode& difference = graph.nodes[node.inputs[0].index];
      if (difference.mode != Mode::kSub || difference.inputs[0].kind != Ref::Kind::kNode) continue;
      const ModifierNode& larger = graph.nodes[difference.inputs[0].index];
      if (larger.mode != Mode::kMax) continue;
      const Ref x = larger.inputs[0], y = larger.inputs[1];
      node.mode = Mode::kCmpLt;
      node.inputs[0] = x;
      node.inputs[1] = y;
    }
    drop_unread(graph);
  };
}

Mutation index_before_score() {
  return [](ModifierGraph& graph) {
    std::vector<bool> nodes_of_score;
    const auto of_score = [&](const Ref& ref) { return backend::cudnn::reads_score(ref, nodes_of_score); };
    for (ModifierNode& node : graph.nodes) {
      nodes_of_score.push_back(backend::cudnn::reads_score(node, nodes_of_score));
      auto& [x, y, none] = node.inputs;
      if (node.mode != Mode::kAdd || !of_score(x) || y.kind != Ref::Kind::kNode || of_score(y)) continue;
      const ModifierNode* first = x.kind == Ref::Kind::kNode ? &graph.nodes[x.index] : nullptr;
      if (first != nullptr && first->mode == Mode::kNeg) {
        node.mode = Mode::kSub;
        x = std::exchange(y, first->inputs[0]);
      } else {
        std::swap(x, y);
      }
    }
    drop_unread(graph);
  };
}

Mutation operands_as_declared() {
  return [](ModifierGraph& graph) {
    for (ModifierTensor& tensor : graph.tensors) {
      for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
        if (tensor.strides[i] == 0) {
          tensor.dims[i] = 1;
          tensor.strides[i] = 1;
        }
      }
    }
  };
}

Mutation logical_compute(ElementType type) {
  return [type](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      if (is_logical(node.mode)) node.compute = type;
    }
  };
}

Mutation constant_first_select() {
  return [](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      if (node.mode != Mode::kBinarySelect || node.inputs[1].kind != Ref::Kind::kFloat) continue;
      const ModifierNode& condition = graph.nodes[node.inputs[2].index];
      if (condition.mode != Mode::kLogicalNot) continue;
      node.inputs = {node.inputs[1], node.inputs[0], condition.inputs[0]};
    }
    drop_unread(graph);
  };
}

Mutation without_casts() {
  return [](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      for (Ref& input : node.inputs) {
        if (input.kind == Ref::Kind::kNode && graph.nodes[input.index].mode == Mode::kIdentity)
          input = graph.nodes[input.index].inputs[0];
      }
    }
    drop_unread(graph);
  };
}

Mutation without_truncation() {
  return [](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      if (node.mode != Mode::kIdentity || node.output != ElementType::kInt32) continue;
      const ModifierNode& truncated = graph.nodes[node.inputs[0].index];
      if (truncated.mode != Mode::kBinarySelect) continue;
      node.inputs[0] = graph.nodes[truncated.inputs[0].index].inputs[0];
    }
    drop_unread(graph);
  };
}

Mutation along_the_diagonal(bool along_heads) {
  return [along_heads](ModifierGraph& graph) {
    ModifierTensor& tensor = graph.tensors.at(0);
    const std::int64_t differences = tensor.dims[2] + tensor.dims[3] - 1;
    tensor.strides = {1, along_heads ? differences : 1, -1, 1};
  };
}

Mutation comparison_compute(ElementType type) {
  return [type](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      if (is_comparison(node.mode)) node.compute = type;
    }
  };
}

Mutation and_as_product(ElementType type) {
  return [type](ModifierGraph& graph) {
    for (ModifierNode& node : graph.nodes) {
      if (node.mode != Mode::kLogicalAnd) continue;
      node.mode = Mode::kMul;
      node.compute = type;
    }
  };
}

Mutation both(Mutation first, Mutation second) {
  return [first = std::move(first), second = std::move(second)](ModifierGraph& graph) {
    first(graph);
    second(graph);
  };
}

Mutation padded_to(std::size_t forward_nodes) {
  return [forward_nodes](ModifierGraph& graph) {
    // Only where nothing follows the forward part: the nodes of an adjoint have fixed numbers.
    if (graph.nodes.size() != graph.forward_count) return;
    while (graph.nodes.size() < forward_nodes) {
      ModifierNode node;
      node.mode = Mode::kMul;
      node.inputs[0] = graph.value;
      node.inputs[1].kind = Ref::Kind::kFloat;
      node.inputs[1].float_value = 1.0f;
      graph.value = {Ref::Kind::kNode, static_cast<std::uint32_t>(graph.nodes.size()), 0, 0};
      graph.nodes.push_back(node);
    }
    graph.forward_count = static_cast<std::uint32_t>(graph.nodes.size());
  };
}

Mutation without_tail_guard() {
  return [](ModifierGraph& graph) {
    for (Ref* root : {&graph.value, &graph.d_score}) {
      if (root->kind != Ref::Kind::kNode) continue;
      const ModifierNode& last = graph.nodes[root->index];
      const bool guard = last.mode == Mode::kBinarySelect && last.inputs[1].kind == Ref::Kind::kFloat;
      if (guard) *root = last.inputs[0];
    }
    drop_unread(graph);
  };
}

}  // namespace scoremod::explorer
