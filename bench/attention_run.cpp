#include "attention_run.hpp"

namespace scoremod::bench {
namespace {

ConstBuffer reads(const std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }
Buffer writes(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }

CompileOptions options_of(const std::string& backend, int threads) {
  CompileOptions options;
  options.backend = backend;
  options.threads = threads;
  return options;
}

constexpr std::size_t kAlignment = 64;

}  // namespace

AttentionRun::AttentionRun(const BenchCase& bench_case, const std::string& backend, int threads)
    : case_(bench_case),
      attention_(Attention::compile(bench_case.problem, options_of(backend, threads))),
      inputs_(random_inputs(bench_case.problem)) {
  const AttentionProblem& p = case_.problem;
  o_.resize(inputs_.d_o.size());
  lse_.resize(static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q));
  const bool backward = case_.direction == Direction::kBackward;
  if (!backward) inputs_.d_o = {};
  workspace_.resize(attention_.forward_workspace_bytes() + kAlignment);
  if (!backward) return;
  forward({});
  dq_.resize(inputs_.q.size());
  dk_.resize(inputs_.k.size());
  dv_.resize(inputs_.v.size());
  for (const OwnedOperand& operand : inputs_.operands) d_operands_.emplace_back(operand.bytes.size());
  workspace_.resize(attention_.backward_workspace_bytes() + kAlignment);
}

void AttentionRun::forward(Buffer workspace) {
  ForwardArgs args;
  args.q = reads(inputs_.q);
  args.k = reads(inputs_.k);
  args.v = reads(inputs_.v);
  args.operands = inputs_.operand_buffers();
  args.o = writes(o_);
  args.lse = {lse_.data(), lse_.size() * sizeof(float)};
  attention_.forward(args, workspace);
}

void AttentionRun::run() {
  void* aligned = workspace_.data();
  std::size_t space = workspace_.size();
  std::align(kAlignment, space - kAlignment, aligned, space);
  const Buffer workspace{aligned, space};
  if (case_.direction == Direction::kForward) return forward(workspace);
  BackwardArgs args;
  args.q = reads(inputs_.q);
  args.k = reads(inputs_.k);
  args.v = reads(inputs_.v);
  args.o = reads(o_);
  args.lse = {lse_.data(), lse_.size() * sizeof(float)};
  args.d_o = reads(inputs_.d_o);
  args.operands = inputs_.operand_buffers();
  args.dq = writes(dq_);
  args.dk = writes(dk_);
  args.dv = writes(dv_);
  for (std::size_t i = 0; i < d_operands_.size(); ++i) {
    if (is_floating(case_.problem.operands[i].dtype)) {
      args.d_operands.push_back({inputs_.operands[i].name, writes(d_operands_[i])});
    }
  }
  attention_.backward(args, workspace);
}

}  // namespace scoremod::bench
