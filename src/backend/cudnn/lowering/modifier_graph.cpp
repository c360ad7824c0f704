#include "backend/cudnn/lowering/modifier_graph.hpp"

#include <algorithm>
#include <array>

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr std::array kModeNames{
    "identity",    "gen_index",     "add",        "sub",        "mul",    "div",       "mod",         "pow",
    "min",         "max",           "add_square", "neg",        "abs",    "floor",     "ceil",        "exp",
    "log",         "sqrt",          "rsqrt",      "reciprocal", "sin",    "cos",       "tan",         "tanh",
    "sigmoid",     "erf",           "softplus",   "relu",       "gelu",   "gelu_tanh", "swish",       "elu",
    "cmp_eq",      "cmp_neq",       "cmp_lt",     "cmp_le",     "cmp_gt", "cmp_ge",    "logical_and", "logical_or",
    "logical_not", "binary_select", "band"};
static_assert(kModeNames.size() == static_cast<std::size_t>(Mode::kBand) + 1, "one name for each mode");

std::string print(const Ref& ref) {
  switch (ref.kind) {
    case Ref::Kind::kNone: return "none";
    case Ref::Kind::kScore: return "score";
    case Ref::Kind::kUpstream: return "upstream";
    case Ref::Kind::kNode: return concat("n", ref.index);
    case Ref::Kind::kTensor: return concat("t", ref.index);
    case Ref::Kind::kFloat: return concat(ref.float_value, "f");
    case Ref::Kind::kInt32: return concat(ref.int_value);
  }
  return "none";
}

std::string print(const ModifierNode& node) {
  std::string text = concat(to_string(node.mode), ".", to_string(node.compute));
  if (node.output != node.compute) text += concat("->", to_string(node.output));
  if (node.mode == Mode::kGenIndex) text += concat(" axis ", node.axis);
  for (const Ref& input : node.inputs) {
    if (input.kind != Ref::Kind::kNone) text += " " + print(input);
  }
  if (node.band) text += concat(node.band->left ? " left " : " right ", node.band->bound);
  return text;
}

}  // namespace

const char* to_string(Mode mode) { return kModeNames[static_cast<std::size_t>(mode)]; }

const char* to_string(ElementType type) {
  switch (type) {
    case ElementType::kFloat: return "f32";
    case ElementType::kInt32: return "i32";
    case ElementType::kBoolean: return "bool";
  }
  return "unknown";
}

bool reads_score(const Ref& ref, const std::vector<bool>& nodes) {
  return ref.kind == Ref::Kind::kScore || ref.kind == Ref::Kind::kUpstream ||
         (ref.kind == Ref::Kind::kNode && nodes[ref.index]);
}

bool reads_score(const ModifierNode& node, const std::vector<bool>& nodes) {
  return std::ranges::any_of(node.inputs, [&](const Ref& input) { return reads_score(input, nodes); });
}

std::string to_string(const ModifierGraph& graph) {
  std::string text;
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    const ModifierTensor& tensor = graph.tensors[i];
    text += concat("t", i, ": ", scoremod::to_string(tensor.dtype), tensor.by_value ? " by value" : "");
    for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
      text += concat(d == 0 ? " " : ",", tensor.dims[d]);
    }
    for (std::size_t d = 0; d < tensor.strides.size(); ++d) {
      text += concat(d == 0 ? " strides " : ",", tensor.strides[d]);
    }
    text += "\n";
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) text += concat("n", i, " = ", print(graph.nodes[i]), "\n");
  text += "value = " + print(graph.value) + "\n";
  if (graph.d_score.kind != Ref::Kind::kNone) text += "d_score = " + print(graph.d_score) + "\n";
  return text;
}

}  // namespace scoremod::backend::cudnn
