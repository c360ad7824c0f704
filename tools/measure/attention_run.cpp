#include "attention_run.hpp"

#include <algorithm>

namespace scoremod::measure {
namespace {

/// Sets together are larger than the caches of any GPU (an H200 has 60 MB, a B200 126 MB) by a factor.
constexpr std::size_t kAllSetsBytes = std::size_t{512} << 20;
constexpr std::size_t kMostSets = 16;

ConstBuffer reads(const std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }

RunOutput make_output(const std::string& name, const TensorInfo& tensor) {
  // NaN in every float dtype: what is never written shows.
  return {name, tensor, std::vector<std::byte>(tensor.bytes, std::byte{0xff})};
}

Buffer find(std::vector<RunOutput>& outputs, const std::string& name) {
  const auto found = std::ranges::find(outputs, name, &RunOutput::name);
  return found == outputs.end() ? Buffer{} : Buffer{found->bytes.data(), found->bytes.size()};
}

}  // namespace

AttentionRun::AttentionRun(const BenchCase& bench_case, const CompileOptions& options, CaseInputs inputs)
    : case_(bench_case), attention_(Attention::compile(bench_case.problem, options)), inputs_(std::move(inputs)) {
  make_outputs();
  // At least two on a device: what two implementations write can then be compared.
  const std::size_t enough = std::clamp(kAllSetsBytes / set_bytes() + 1, std::size_t{2}, kMostSets);
  const std::size_t count = on_device() ? enough : 1;
  while (sets_.size() < count) add_set();
}

std::size_t AttentionRun::workspace_bytes() const {
  return case_.direction == Direction::kForward ? attention_.forward_workspace_bytes()
                                                : attention_.backward_workspace_bytes();
}

void AttentionRun::make_outputs() {
  const std::vector<TensorInfo> tensors = tensors_of(case_.problem);
  forward_outputs_ = {make_output("o", tensors[3]), make_output("lse", tensors[4])};
  if (case_.direction == Direction::kForward) {
    outputs_.swap(forward_outputs_);
    return;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i < 3)
      outputs_.push_back(make_output("d" + tensors[i].name, tensors[i]));
    else if (tensors[i].has_gradient)
      outputs_.push_back(make_output("d_" + tensors[i].name, tensors[i]));
  }
}

std::size_t AttentionRun::set_bytes() const {
  const ProblemInputs& tensors = *inputs_.tensors;
  std::size_t bytes = tensors.q.size() + tensors.k.size() + tensors.v.size();
  for (const OwnedOperand& operand : inputs_.operands->operands) bytes += operand.bytes.size();
  for (const RunOutput& output : outputs_) bytes += output.bytes.size();
  return bytes;
}

Buffer AttentionRun::output(const std::string& name) {
  const Buffer found = find(outputs_, name);
  return found.data != nullptr ? found : find(forward_outputs_, name);
}

ForwardArgs AttentionRun::host_forward() {
  ForwardArgs args;
  args.q = reads(inputs_.tensors->q);
  args.k = reads(inputs_.tensors->k);
  args.v = reads(inputs_.tensors->v);
  args.operands = inputs_.operands->operand_buffers();
  args.o = output("o");
  args.lse = output("lse");
  return args;
}

BackwardArgs AttentionRun::host_backward() {
  const ForwardArgs forward = host_forward();
  BackwardArgs args;
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.o = {forward.o.data, forward.o.bytes};
  args.lse = {forward.lse.data, forward.lse.bytes};
  args.d_o = reads(inputs_.tensors->d_o);
  args.operands = forward.operands;
  args.dq = output("dq");
  args.dk = output("dk");
  args.dv = output("dv");
  for (const OperandBuffer& operand : forward.operands) {
    const Buffer gradient = output("d_" + operand.name);
    if (gradient.data != nullptr) args.d_operands.push_back({operand.name, gradient});
  }
  return args;
}

void AttentionRun::add_set() {
  Set& set = sets_.emplace_back(attention_);
  set.forward = set.staging.stage(host_forward());
  set.workspace = set.staging.workspace(workspace_bytes());
  if (case_.direction == Direction::kForward) return;
  attention_.forward(set.forward);
  set.backward = set.staging.stage(host_backward());
}

void AttentionRun::run(std::size_t set) {
  const Set& chosen = sets_[set];
  if (case_.direction == Direction::kForward)
    attention_.forward(chosen.forward, chosen.workspace);
  else
    attention_.backward(chosen.backward, chosen.workspace);
}

const std::vector<RunOutput>& AttentionRun::fetch(std::size_t set) {
  sets_[set].staging.fetch();
  return outputs_;
}

}  // namespace scoremod::measure
