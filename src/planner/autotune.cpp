#include "planner/autotune.hpp"

#include <algorithm>
#include <array>

#include "scoremod/inputs.hpp"
#include "scoremod/tensors.hpp"

#include "backend/call_memory.hpp"
#include "backend/memory_space.hpp"
#include "base/canonical_bytes.hpp"
#include "plans/plan_store.hpp"

namespace scoremod::planner {
namespace {

/// The first runs load kernels and raise clocks.
constexpr int kWarmUps = 2;
constexpr int kRuns = 5;

/// Tensors of more bytes may not fit in the host's memory, where random numbers are drawn, and take minutes to fill.
constexpr std::size_t kMostTensorBytes = std::size_t{4} << 30;

using backend::OwnedMemory;

bool is_too_large(const AttentionProblem& problem) {
  std::size_t left = kMostTensorBytes;
  for (const TensorInfo& tensor : tensors_of(problem)) {
    if (tensor.bytes > left) return true;
    left -= tensor.bytes;
  }
  return false;
}

/// Writes o and the LSE that a backward reads, without a forward. They must be numbers, because a kernel may compute
/// rows again if they are not. An LSE above all scores of random inputs keeps weights below 1.
void write_forward(const backend::CallMemory& call, const backend::MemorySpace& memory) {
  constexpr float kLse = 128;
  const std::vector<std::byte> o(call.o.bytes());
  memory.copy_in(call.o.data(), o.data(), o.size());
  const std::vector<float> lse(call.lse.bytes() / sizeof(float), kLse);
  memory.copy_in(call.lse.data(), lse.data(), call.lse.bytes());
}

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
  if (entries_.size() == 1 || is_too_large(problem_.problem)) return std::move(entries_.front());
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
  const AttentionProblem& problem = problem_.problem;
  backend::CallMemory call(problem, task_.direction, memory, random_inputs(problem), backend::OutputFill::kNone);
  if (task_.direction == backend::Direction::kBackward) write_forward(call, memory);
  backend::CallParameters parameters;
  parameters.scale = problem.effective_scale();
  parameters.stream = memory.own_stream();
  const auto stopwatch = memory.stopwatch(parameters.stream);
  for (auto& [considered, plan] : entries_) {
    const OwnedMemory workspace(memory, plan.workspace_bytes());
    const std::span<std::byte> scratch(workspace.data(), workspace.bytes());
    std::array<double, kRuns> times{};
    for (int run = -kWarmUps; run < kRuns; ++run) {
      stopwatch->start();
      if (plan.forward) {
        plan.forward->execute(call.forward(), parameters, scratch);
      } else {
        plan.backward->execute(call.backward(task_.operand_gradients), parameters, scratch);
      }
      const double milliseconds = stopwatch->stop();
      if (run >= 0) times[static_cast<std::size_t>(run)] = milliseconds;
    }
    std::ranges::sort(times);
    considered->measured_milliseconds = times[kRuns / 2];
  }
}

}  // namespace scoremod::planner
