#include "attention_state.hpp"

#include <utility>

#include "scoremod/attention_cache.hpp"
#include "scoremod/error.hpp"

namespace scoremod::jax {

AttentionState::AttentionState(const std::string& problem, CompileOptions options)
    : AttentionState(parse_problem(problem), std::move(options)) {}

AttentionState::AttentionState(const AttentionProblem& problem, CompileOptions options)
    : AttentionState(problem, std::move(options),
                     [problem](const CompileOptions& of_device) { return cached_attention(problem, of_device); }) {}

AttentionState::AttentionState(const AttentionProblem& problem, CompileOptions options, Make make)
    : make_(std::move(make)),
      options_(std::move(options)),
      tensors_(tensors_of(problem)),
      gradients_(gradients_of(problem)) {}

Prepared AttentionState::made(int device, std::optional<std::size_t> max_workspace) const {
  CompileOptions options = options_;
  options.device = device;
  options.max_workspace = max_workspace;
  const auto attention = make_(options);
  return {attention, attention->forward_workspace_bytes(), attention->backward_workspace_bytes()};
}

void AttentionState::prepare(int device) {
  const std::lock_guard lock(mutex_);
  if (const auto failed = failed_captures_.find(device); failed != failed_captures_.end()) {
    throw Error(ErrorCode::kEnvironment,
                "an earlier run of this program failed while XLA recorded it as a CUDA graph, and XLA would run the "
                "graph as it was left, with other results; call jax.clear_caches() or compile the program again, or "
                "have XLA record none (XLA_FLAGS=--xla_gpu_enable_command_buffer=); the first failure: " +
                    failed->second);
  }
  Prepared& prepared = by_device_[device];
  if (!prepared.attention) prepared = made(device, std::nullopt);
}

void AttentionState::prepare_within(int device, std::size_t Prepared::*needed, std::size_t given) {
  prepare(device);
  const std::lock_guard lock(mutex_);
  if (!within_.insert(device).second) return;
  Prepared& prepared = by_device_[device];
  if (prepared.*needed <= given) return;
  try {
    const Prepared smaller = made(device, given);
    const bool runs = needed == &Prepared::forward_workspace || !smaller.attention->backward_backend().empty();
    if (runs && smaller.*needed <= given) prepared = smaller;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
  }
}

void AttentionState::remember_failed_capture(int device, const CaptureFailed& error) const {
  const std::lock_guard lock(mutex_);
  failed_captures_.try_emplace(device, error.what());
}

Prepared AttentionState::on(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_device_.find(device);
  if (found != by_device_.end() && found->second.attention) return found->second;
  throw Error(ErrorCode::kBug, "XLA runs a call on device " + std::to_string(device) + " without having prepared it");
}

}  // namespace scoremod::jax
