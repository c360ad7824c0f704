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

// Structured bindings name every member of each struct here, so a new member does not compile until it is written too.
// Keys of verdicts are made of this text.

std::string print(const Ref& ref) {
  const auto& [kind, index, float_value, int_value] = ref;
  switch (kind) {
    case Ref::Kind::kNone: return "none";
    case Ref::Kind::kScore: return "score";
    case Ref::Kind::kUpstream: return "upstream";
    case Ref::Kind::kNode: return concat("n", index);
    case Ref::Kind::kTensor: return concat("t", index);
    case Ref::Kind::kFloat: return concat(float_value, "f");
    case Ref::Kind::kInt32: return concat(int_value);
  }
  return "none";
}

void print(std::string& text, const ModifierNode& node) {
  const auto& [mode, compute, output, inputs, axis, band] = node;
  text += concat(to_string(mode), ".", to_string(compute));
  if (output != compute) text += concat("->", to_string(output));
  if (mode == Mode::kGenIndex) text += concat(" axis ", axis);
  for (const Ref& input : inputs) {
    if (input.kind != Ref::Kind::kNone) text += " " + print(input);
  }
  if (band) {
    const auto& [left, bound] = *band;
    text += concat(left ? " left " : " right ", bound);
  }
}

void print(std::string& text, const ModifierTensor& tensor) {
  const auto& [dims, strides, dtype, by_value] = tensor;
  text += concat(scoremod::to_string(dtype), by_value ? " by value" : "");
  for (std::size_t d = 0; d < dims.size(); ++d) text += concat(d == 0 ? " " : ",", dims[d]);
  for (std::size_t d = 0; d < strides.size(); ++d) text += concat(d == 0 ? " strides " : ",", strides[d]);
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
  [[maybe_unused]] const auto& [tensors, nodes, forward_count, value, d_score] = graph;  // the count: callers say
  std::string text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    text += concat("t", i, ": ");
    print(text, tensors[i]);
    text += '\n';
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    text += concat("n", i, " = ");
    print(text, nodes[i]);
    text += '\n';
  }
  text += concat("value = ", print(value), "\n");
  if (d_score.kind != Ref::Kind::kNone) text += concat("d_score = ", print(d_score), "\n");
  return text;
}

}  // namespace scoremod::backend::cudnn
