#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/bytes.hpp"

namespace scoremod::backend {

/// A key of a candidate, made when it is first asked for. An answer that builds nothing asks for none, and some are
/// made of kernels' whole text. Copies share it; any thread may ask.
class CandidateKey {
 public:
  CandidateKey() = default;
  // Both convert, because a backend has one or the other.
  CandidateKey(Bytes bytes) {  // NOLINT(google-explicit-constructor)
    if (!bytes.empty()) made_ = std::make_shared<Made>(std::move(bytes));
  }
  /// `make` gives a key that is not empty; it is called once at most.
  template <std::invocable Make>
  CandidateKey(Make make)  // NOLINT(google-explicit-constructor)
      : made_(std::make_shared<Made>(std::function<Bytes()>(std::move(make)))) {}

  /// Whether there is no key; makes none.
  bool empty() const { return made_ == nullptr; }
  const Bytes& bytes() const {
    static const Bytes kNone;
    return empty() ? kNone : made_->bytes();
  }
  operator const Bytes&() const { return bytes(); }  // NOLINT(google-explicit-constructor)
  friend bool operator==(const CandidateKey& x, const CandidateKey& y) {
    return x.made_ == y.made_ || x.bytes() == y.bytes();
  }

 private:
  class Made {
   public:
    explicit Made(Bytes bytes) : bytes_(std::move(bytes)) {}
    explicit Made(std::function<Bytes()> make) : make_(std::move(make)) {}
    const Bytes& bytes() {
      std::call_once(once_, [this] {
        if (make_) bytes_ = make_();
        make_ = nullptr;
      });
      return bytes_;
    }

   private:
    std::once_flag once_;
    std::function<Bytes()> make_;
    Bytes bytes_;
  };

  std::shared_ptr<Made> made_;
};

}  // namespace scoremod::backend
