#pragma once

#include <cstdint>
#include <future>
#include <utility>
#include <variant>

namespace scoremod::backend {

/// MemorySpace::context() of where plans are to run: known, or still in the making on another thread. To make a
/// device's first context takes a tenth of a second and more, in which plans can be built that need none.
class TargetContext {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): most are known
  TargetContext(std::uint64_t known = 0) : context_(known) {}
  explicit TargetContext(std::shared_future<std::uint64_t> made) : context_(std::move(made)) {}

  /// Waits for it. Rethrows the exception of making it.
  std::uint64_t id() const {
    const auto* made = std::get_if<std::shared_future<std::uint64_t>>(&context_);
    return made == nullptr ? std::get<std::uint64_t>(context_) : made->get();
  }

 private:
  std::variant<std::uint64_t, std::shared_future<std::uint64_t>> context_;
};

}  // namespace scoremod::backend
