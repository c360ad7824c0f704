#include "attention_run.hpp"

#include <algorithm>
#include <utility>

namespace scoremod::measure {
namespace {

/// Sets together are larger than the caches of any GPU (an H200 has 60 MB, a B200 126 MB) by a factor.
constexpr std::size_t kAllSetsBytes = std::size_t{512} << 20;
constexpr std::size_t kMaxSets = 16;
/// The outputs of the forward come first: o and lse.
constexpr std::size_t kForwardOutputs = 2;

InputBuffers buffers_of(const CaseInputs& inputs) {
  InputBuffers buffers = scoremod::buffers_of(*inputs.tensors);
  buffers.operands = inputs.operands->operand_buffers();
  return buffers;
}

}  // namespace

AttentionRun::AttentionRun(const BenchCase& bench_case, const CompileOptions& options, CaseInputs inputs)
    : case_(bench_case),
      attention_(Attention::compile(bench_case.problem, options)),
      inputs_(std::move(inputs)),
      buffers_(case_.problem, buffers_of(inputs_)) {
  // At least two on a device, so that the outputs of two implementations can be compared.
  const std::size_t enough = std::clamp(kAllSetsBytes / buffers_.bytes() + 1, std::size_t{2}, kMaxSets);
  const std::size_t count = on_device() ? enough : 1;
  while (sets_.size() < count) add_set();
}

InputBuffers AttentionRun::inputs() const { return buffers_of(inputs_); }

std::size_t AttentionRun::workspace_bytes() const {
  return case_.direction == Direction::kForward ? attention_.forward_workspace_bytes()
                                                : attention_.backward_workspace_bytes();
}

void AttentionRun::add_set() {
  Set& set = sets_.emplace_back(attention_);
  set.forward = set.staging.stage(buffers_.forward());
  set.workspace = set.staging.workspace(workspace_bytes());
  if (case_.direction == Direction::kForward) return;
  attention_.forward(set.forward);
  set.backward = set.staging.stage(buffers_.backward());
}

void AttentionRun::run(std::size_t set) {
  const Set& chosen = sets_[set];
  if (case_.direction == Direction::kForward)
    attention_.forward(chosen.forward, chosen.workspace);
  else
    attention_.backward(chosen.backward, chosen.workspace);
}

std::span<const RunOutput> AttentionRun::fetch(std::size_t set) {
  sets_[set].staging.fetch();
  const std::span<const RunOutput> outputs = buffers_.outputs();
  return case_.direction == Direction::kForward ? outputs : outputs.subspan(kForwardOutputs);
}

}  // namespace scoremod::measure
