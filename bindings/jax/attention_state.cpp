#include "attention_state.hpp"

#include <tuple>
#include <utility>

#include "scoremod/error.hpp"

namespace scoremod::jax {
namespace {

/// Compiled attentions that some custom call still holds.
class LiveAttentions {
 public:
  std::shared_ptr<const Attention> get(const std::string& problem, const CompileOptions& options) {
    const std::lock_guard lock(mutex_);
    std::erase_if(attentions_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const Attention>& known = attentions_[{problem, options.backend, *options.memory, *options.device}];
    if (std::shared_ptr<const Attention> attention = known.lock()) return attention;
    auto attention = std::make_shared<const Attention>(Attention::compile(parse_problem(problem), options));
    known = attention;
    return attention;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, MemoryKind, int>, std::weak_ptr<const Attention>> attentions_;
};

}  // namespace

AttentionState::AttentionState(std::string problem, std::string backend, MemoryKind memory)
    : problem_(std::move(problem)),
      backend_(std::move(backend)),
      memory_(memory),
      tensors_(tensors_of(parse_problem(problem_))) {}

const Attention& AttentionState::prepare(int device) {
  static LiveAttentions live;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Attention>& attention = by_device_[device];
  if (attention) return *attention;
  CompileOptions options;
  options.backend = backend_;
  options.memory = memory_;
  options.device = device;
  attention = live.get(problem_, options);
  return *attention;
}

const Attention& AttentionState::on(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_device_.find(device);
  if (found != by_device_.end() && found->second) return *found->second;
  throw Error(ErrorCode::kBug, "XLA runs a call on device " + std::to_string(device) + " without having prepared it");
}

}  // namespace scoremod::jax
