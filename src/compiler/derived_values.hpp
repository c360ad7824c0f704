#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/fork_mutex.hpp"

namespace scoremod::compiler {

/// Values that follow from the structure of a problem and a key, but from no size. Each is made once for all problems
/// of the structure. Any thread may ask.
class DerivedValues {
 public:
  /// `make` gives the value; two threads that ask at once may both make it, and have the same one.
  template <class Value, class Make>
  std::shared_ptr<const Value> get(std::span<const std::byte> key, const Make& make) {
    {
      const std::scoped_lock lock(mutex_);
      if (auto found = find<Value>(key)) return found;
    }
    auto made = std::make_shared<const Value>(make());
    const std::scoped_lock lock(mutex_);
    if (auto found = find<Value>(key)) return found;
    values_.push_back({&typeid(Value), Bytes(key.begin(), key.end()), made});
    return made;
  }

 private:
  struct Kept {
    const std::type_info* type;
    Bytes key;
    std::shared_ptr<const void> value;
  };

  template <class Value>
  std::shared_ptr<const Value> find(std::span<const std::byte> key) const {
    for (const Kept& each : values_)
      if (*each.type == typeid(Value) && std::ranges::equal(each.key, key))
        return std::static_pointer_cast<const Value>(each.value);
    return nullptr;
  }

  ForkMutex mutex_;
  std::vector<Kept> values_;  ///< a few for each structure, which are compared sooner than hashed
};

/// A problem's place for DerivedValues. A copy has none, because a changed copy must not use the original's derived
/// values. Only at_sizes_of() shares them, and copies that never change.
class Derived {
 public:
  Derived() = default;
  Derived(const Derived&) {}
  Derived& operator=(const Derived& other) {
    if (this != &other) values_.reset();
    return *this;
  }
  Derived(Derived&&) = default;
  Derived& operator=(Derived&&) = default;

  void share(const Derived& origin) { values_ = origin.values_; }
  void begin() { values_ = std::make_shared<DerivedValues>(); }
  /// Null where nothing is kept.
  const std::shared_ptr<DerivedValues>& values() const { return values_; }

 private:
  std::shared_ptr<DerivedValues> values_;
};

}  // namespace scoremod::compiler
