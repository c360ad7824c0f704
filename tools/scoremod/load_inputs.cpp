#include "load_inputs.hpp"

#include <algorithm>
#include <unistd.h>

#include "fail.hpp"
#include "npy.hpp"
#include "strided_copy.hpp"

namespace scoremod::cli {
namespace {

/// A problem may be valid and far too large. Without this check the system would not refuse the memory, but end the
/// process.
void check_memory(const std::vector<TensorInfo>& tensors) {
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  double needed = 0;
  for (const TensorInfo& tensor : tensors) needed += static_cast<double>(tensor.bytes);
  constexpr double kGiB = 1 << 30;
  if (machine <= 0 || needed <= machine) return;
  fail(ErrorCode::kEnvironment, "the problem's tensors take ", needed / kGiB, " GiB, this machine has ", machine / kGiB,
       " GiB of memory; make the problem smaller");
}

RandomInputOptions random_options(const ProblemFile& file, std::optional<std::uint64_t> seed) {
  RandomInputOptions options;
  options.seed = seed.value_or(file.seed);
  for (const InputSpec& spec : file.inputs) {
    if (spec.kind == InputKind::kNormal)
      options.overrides.push_back({spec.tensor, {FillKind::kNormal, spec.low, spec.high}});
    if (spec.kind == InputKind::kUniform)
      options.overrides.push_back({spec.tensor, {FillKind::kUniform, spec.low, spec.high}});
    if (spec.kind == InputKind::kSegments)
      options.overrides.push_back({spec.tensor, {FillKind::kSegments, 0, spec.high}});
  }
  return options;
}

std::vector<std::byte> elements_of(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> elements(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) write_element(dtype, elements.data() + i * size_of(dtype), values[i]);
  return elements;
}

/// The memory of the tensor that an input is for.
std::vector<std::byte>& memory_of(ProblemInputs& inputs, const std::string& name) {
  if (name == "q") return inputs.q;
  if (name == "k") return inputs.k;
  if (name == "v") return inputs.v;
  if (name == "d_o") return inputs.d_o;
  return std::ranges::find(inputs.operands, name, &OwnedOperand::name)->bytes;
}

}  // namespace

ProblemInputs load_inputs(const ProblemSource& source, std::optional<std::uint64_t> seed) {
  const std::vector<TensorInfo> tensors = tensors_of(source.file.problem);
  check_memory(tensors);
  ProblemInputs inputs = random_inputs(source.file.problem, random_options(source.file, seed));
  for (const InputSpec& spec : source.file.inputs) {
    const bool from_file = spec.kind == InputKind::kNpy;
    if (!from_file && spec.kind != InputKind::kValues) continue;
    const TensorInfo& tensor = *std::ranges::find(tensors, spec.tensor == "d_o" ? "o" : spec.tensor, &TensorInfo::name);
    const std::vector<std::byte> elements = from_file ? read_npy(source.folder / spec.path, tensor.dtype, tensor.shape)
                                                      : elements_of(spec.values, tensor.dtype);
    scatter(tensor, elements, memory_of(inputs, spec.tensor));
  }
  return inputs;
}

}  // namespace scoremod::cli
