#include "attention_state.hpp"

#include <sstream>
#include <utility>

#include "scoremod/attention_cache.hpp"
#include "scoremod/error.hpp"

namespace scoremod::jax {

namespace {

/// The names between commas.
std::vector<std::string> names_of(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream pieces(list);
  for (std::string name; std::getline(pieces, name, ',');) names.push_back(name);
  return names;
}

}  // namespace

AttentionState::AttentionState(std::string problem, const std::string& backends, MemoryKind memory)
    : problem_(std::move(problem)),
      backends_(names_of(backends)),
      memory_(memory),
      tensors_(tensors_of(parse_problem(problem_))),
      gradients_(gradients_of(parse_problem(problem_))) {}

const Attention& AttentionState::prepare(int device) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Attention>& attention = by_device_[device];
  if (attention) return *attention;
  CompileOptions options;
  options.backends = backends_;
  options.memory = memory_;
  options.device = device;
  attention = cached_attention(parse_problem(problem_), options);
  return *attention;
}

const Attention& AttentionState::on(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_device_.find(device);
  if (found != by_device_.end() && found->second) return *found->second;
  throw Error(ErrorCode::kBug, "XLA runs a call on device " + std::to_string(device) + " without having prepared it");
}

}  // namespace scoremod::jax
