#include "backend/cudnn/patterns/score_work.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr std::size_t kRows = 2, kKeys = 3;  // of a tensor's dimensions

bool is_constant(const Ref& ref) { return ref.kind == Ref::Kind::kFloat || ref.kind == Ref::Kind::kInt32; }
bool is_infinite(const Ref& ref) { return ref.kind == Ref::Kind::kFloat && std::isinf(ref.float_value); }

std::string name_of(const ModifierNode& node) {
  std::string name = to_string(node.mode);
  if (node.mode == Mode::kGenIndex) return name;
  if (node.mode == Mode::kBinarySelect) {
    const std::span values(node.inputs.data(), 2);
    name += std::ranges::any_of(values, is_infinite)   ? ".cut"
            : std::ranges::any_of(values, is_constant) ? ".constant"
                                                       : "";
  }
  return node.compute == ElementType::kInt32 ? name + ".i32" : name;
}

std::string name_of(const ModifierTensor& tensor) {
  std::string name = "read.";
  // A row of stride 0 is read again for each of the rows.
  const bool keys = tensor.dims[kKeys] > 1;
  if (tensor.dims[kRows] > 1) name += tensor.strides[kRows] != 0 ? "q" : keys ? "repeated_" : "repeated";
  if (keys) name += "k";
  if (name == "read.") name += "fixed";
  return concat(name, ".", to_string(tensor.dtype));
}

}  // namespace

std::map<std::string, int> score_work(const ModifierGraph& graph) {
  std::map<std::string, int> work;
  std::vector<bool> of_gradient;  // of each node: whether it depends on the upstream gradient
  for (const ModifierNode& node : graph.nodes) {
    of_gradient.push_back(std::ranges::any_of(node.inputs, [&](const Ref& input) {
      return input.kind == Ref::Kind::kUpstream || (input.kind == Ref::Kind::kNode && of_gradient[input.index]);
    }));
    if (node.mode == Mode::kBand) continue;
    ++work[name_of(node)];
    for (const Ref& input : node.inputs) {
      if (input.kind != Ref::Kind::kTensor || graph.tensors[input.index].by_value) continue;
      ++work[concat(of_gradient.back() ? "adjoint." : "", name_of(graph.tensors[input.index]))];
    }
  }
  return work;
}

}  // namespace scoremod::backend::cudnn
