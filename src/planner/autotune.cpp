#include "planner/autotune.hpp"

#include <algorithm>
#include <array>

#include "scoremod/inputs.hpp"

#include "backend/memory_space.hpp"
#include "base/canonical_bytes.hpp"
#include "plans/plan_store.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::planner {
namespace {

/// The first runs load kernels and raise clocks.
constexpr int kWarmUps = 2;
constexpr int kRuns = 5;

using backend::OwnedMemory;
using problem::TensorRole;

/// A call's tensors in a memory space, of the problem's whole size.
class TimedCall {
 public:
  TimedCall(const AttentionProblem& problem, const backend::MemorySpace& memory)
      : problem_(problem), memory_(memory), inputs_(random_inputs(problem)) {
    q_ = upload(inputs_.q);
    k_ = upload(inputs_.k);
    v_ = upload(inputs_.v);
    for (const OwnedOperand& operand : inputs_.operands) operands_.push_back(upload(operand.bytes));
    o_ = room(TensorRole::kO);
    lse_ =
        OwnedMemory(memory, static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q) * sizeof(float));
    for (const OwnedMemory& operand : operands_) operand_data_.push_back(operand.data());
    parameters_.scale = problem.effective_scale();
    if (!problem.backward) return;
    d_o_ = upload(inputs_.d_o);
    dq_ = room(TensorRole::kDQ);
    dk_ = room(TensorRole::kDK);
    dv_ = room(TensorRole::kDV);
  }

  void run(const backend::ForwardPlan& plan, std::span<std::byte> workspace) const {
    plan.execute({q_.data(), k_.data(), v_.data(), operand_data_, o_.data(), reinterpret_cast<float*>(lse_.data())},
                 parameters_, workspace);
  }

  /// Asks for no gradient of an operand but those of the task.
  void run(const backend::BackwardPlan& plan, const backend::Task& task, std::span<std::byte> workspace) {
    backend::BackwardTensors tensors;
    tensors.q = q_.data();
    tensors.k = k_.data();
    tensors.v = v_.data();
    tensors.o = o_.data();
    tensors.lse = reinterpret_cast<const float*>(lse_.data());
    tensors.d_o = d_o_.data();
    tensors.operands = operand_data_;
    tensors.dq = dq_.data();
    tensors.dk = dk_.data();
    tensors.dv = dv_.data();
    std::vector<void*> gradients(operands_.size());
    for (const std::uint32_t operand : task.operand_gradients) {
      if (d_operands_.size() < operands_.size()) d_operands_.resize(operands_.size());
      if (d_operands_[operand].data() == nullptr) {
        d_operands_[operand] = OwnedMemory(memory_, operands_[operand].bytes());
      }
      gradients[operand] = d_operands_[operand].data();
    }
    tensors.d_operands = gradients;
    plan.execute(tensors, parameters_, workspace);
  }

 private:
  OwnedMemory upload(const std::vector<std::byte>& bytes) const {
    OwnedMemory made(memory_, bytes.size());
    if (!bytes.empty()) memory_.copy_in(made.data(), bytes.data(), bytes.size());
    return made;
  }
  OwnedMemory room(TensorRole role) const { return {memory_, problem::bytes_of(problem_, role)}; }

  const AttentionProblem& problem_;
  const backend::MemorySpace& memory_;
  const ProblemInputs inputs_;
  OwnedMemory q_, k_, v_, o_, lse_, d_o_, dq_, dk_, dv_;
  std::vector<OwnedMemory> operands_, d_operands_;
  std::vector<const void*> operand_data_;
  backend::CallParameters parameters_;
};

}  // namespace

/// Every candidate, and where they run: another list has another winner.
Bytes Autotune::key() const {
  CanonicalWriter out;
  out.text("autotune").text(request_.target->device.label()).list(entries_.size());
  for (const Entry& entry : entries_) {
    const backend::Candidate& candidate = entry.first->candidate;
    out.text(entry.first->engine->engine_text()).bytes(candidate.plan_key.bytes()).text(candidate.label);
  }
  out.text(to_json(problem_.problem)).integer(static_cast<std::int64_t>(task_.direction)).boolean(task_.attention);
  for (const std::uint32_t operand : task_.operand_gradients) out.integer(operand);
  return out.written();
}

std::optional<Autotune::Entry> Autotune::stored(const Bytes& key) {
  const auto found = plans::plan_store()->load(plans::RecordKind::kChoice, key);
  if (!found || found->size() != 1) return std::nullopt;
  const auto place = static_cast<std::size_t>(found->front());
  return place < entries_.size() ? std::optional(std::move(entries_[place])) : std::nullopt;
}

std::optional<Autotune::Entry> Autotune::fastest() {
  if (entries_.empty()) return std::nullopt;
  if (entries_.size() == 1) return std::move(entries_.front());
  const Bytes choice = key();
  if (auto known = stored(choice)) return known;
  measure();
  const auto time = [](const Entry& entry) { return *entry.first->measured_milliseconds; };
  const auto best = std::ranges::min_element(entries_, {}, time);
  const auto place = static_cast<std::size_t>(best - entries_.begin());
  plans::plan_store()->save({plans::RecordKind::kChoice, best->first->engine->engine_text(),
                             request_.target->device.label(), best->first->candidate.label, choice,
                             Bytes{static_cast<std::byte>(place)}});
  return std::move(*best);
}

void Autotune::measure() {
  const backend::MemorySpace& memory = entries_.front().first->engine->memory();
  TimedCall call(problem_.problem, memory);
  const auto stopwatch = memory.stopwatch();
  for (auto& [considered, plan] : entries_) {
    const OwnedMemory workspace(memory, plan.workspace_bytes());
    const std::span<std::byte> scratch(workspace.data(), workspace.bytes());
    std::array<double, kRuns> times{};
    for (int run = -kWarmUps; run < kRuns; ++run) {
      stopwatch->start();
      plan.forward ? call.run(*plan.forward, scratch) : call.run(*plan.backward, task_, scratch);
      const double milliseconds = stopwatch->stop();
      if (run >= 0) times[static_cast<std::size_t>(run)] = milliseconds;
    }
    std::ranges::sort(times);
    considered->measured_milliseconds = times[kRuns / 2];
  }
}

}  // namespace scoremod::planner
