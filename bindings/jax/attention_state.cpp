#include "attention_state.hpp"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "error.hpp"

namespace scoremod::jax {
namespace {

namespace ffi = xla::ffi;

/// Compiled attentions that some custom call still holds, by problem and backend.
class LiveAttentions {
 public:
  std::shared_ptr<const Attention> get(const std::string& problem, const std::string& backend) {
    const std::lock_guard lock(mutex_);
    std::erase_if(attentions_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<const Attention>& known = attentions_[{problem, backend}];
    if (std::shared_ptr<const Attention> attention = known.lock()) return attention;
    CompileOptions options;
    options.backend = backend;
    auto attention = std::make_shared<const Attention>(Attention::compile(parse_problem(problem), options));
    known = attention;
    return attention;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<const Attention>> attentions_;
};

}  // namespace

ffi::TypeId AttentionState::id = {};
const ffi::TypeInfo AttentionState::kInfo = ffi::MakeTypeInfo<AttentionState>();

ffi::ErrorOr<std::unique_ptr<AttentionState>> instantiate(std::string_view problem, std::string_view backend) {
  static LiveAttentions live;
  auto state = std::make_unique<AttentionState>();
  const ffi::Error error = guarded([&] {
    state->attention = live.get(std::string(problem), std::string(backend));
    state->tensors = tensors_of(state->attention->problem());
  });
  if (error.failure()) return ffi::Unexpected(error);
  return state;
}

}  // namespace scoremod::jax
