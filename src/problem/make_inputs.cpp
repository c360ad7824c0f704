#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "scoremod/inputs.hpp"

#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod {
namespace {

/// How the elements of an entry are drawn; empty where they are given.
std::optional<Fill> fill_of(const InputSpec& entry) {
  switch (entry.kind) {
    case InputKind::kNormal: return Fill{FillKind::kNormal, entry.low, entry.high};
    case InputKind::kUniform: return Fill{FillKind::kUniform, entry.low, entry.high};
    case InputKind::kSegments: return Fill{FillKind::kSegments, 0, entry.high};
    case InputKind::kValues:
    case InputKind::kNpy: return std::nullopt;
  }
  fail_bug("an input of an unknown kind");
}

std::vector<std::byte> elements_of(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> elements(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(elements.data(), dtype, static_cast<std::int64_t>(i), values[i]);
  }
  return elements;
}

std::vector<std::byte> given_elements(const InputSpec& entry, const TensorInfo& tensor,
                                      const ReadInputFile& read_file) {
  if (entry.kind == InputKind::kValues) return elements_of(entry.values, tensor.dtype);
  if (read_file) return read_file(entry, tensor);
  fail_argument("inputs.", entry.tensor, ": expected values, normal, uniform or segments, found the file ", entry.path,
                ", and nothing that reads files");
}

/// A tensor that takes input: its shape and strides, and its memory.
struct InputTensor {
  TensorInfo info;
  std::vector<std::byte>* memory = nullptr;
};

InputTensor find_tensor(const AttentionProblem& problem, ProblemInputs& inputs, const std::string& name) {
  const std::vector<TensorInfo> tensors = tensors_of(problem);
  if (name == "d_o") return {gradients_of(problem).front(), &inputs.d_o};
  const std::pair<const char*, std::vector<std::byte>*> roles[] = {
      {"q", &inputs.q}, {"k", &inputs.k}, {"v", &inputs.v}};
  for (std::size_t i = 0; i < std::size(roles); ++i) {
    if (name == roles[i].first) return {tensors[i], roles[i].second};
  }
  const auto operand = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
  // random_inputs() has refused other names already, for the entries that it draws.
  if (operand == inputs.operands.end()) fail_argument("inputs.", name, ": expected the name of a tensor that is read");
  constexpr std::size_t kFirstOperand = 5;
  return {tensors[kFirstOperand + static_cast<std::size_t>(operand - inputs.operands.begin())], &operand->bytes};
}

void place(const InputSpec& entry, const InputTensor& to, const std::vector<std::byte>& elements) {
  const problem::StridedTensor tensor{entry.tensor, to.info.dtype, to.info.shape, to.info.strides};
  const std::size_t size = size_of(tensor.dtype);
  if (elements.size() != static_cast<std::size_t>(tensor.elements()) * size) {
    fail_argument("inputs.", entry.tensor, ": expected ", tensor.elements(), " elements, found ",
                  elements.size() / size);
  }
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    std::memcpy(to.memory->data() + static_cast<std::size_t>(offset) * size,
                elements.data() + static_cast<std::size_t>(number) * size, size);
  });
}

}  // namespace

ProblemInputs make_inputs(const AttentionProblem& problem, const std::vector<InputSpec>& entries, std::uint64_t seed,
                          const ReadInputFile& read_file) {
  RandomInputOptions options;
  options.seed = seed;
  for (const InputSpec& entry : entries) {
    if (const auto fill = fill_of(entry)) options.overrides.push_back({entry.tensor, *fill});
  }
  ProblemInputs inputs = random_inputs(problem, options);
  for (const InputSpec& entry : entries) {
    if (fill_of(entry)) continue;
    const InputTensor tensor = find_tensor(problem, inputs, entry.tensor);
    place(entry, tensor, given_elements(entry, tensor.info, read_file));
  }
  return inputs;
}

}  // namespace scoremod
