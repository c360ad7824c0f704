#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "base/bytes.hpp"

namespace scoremod::compiler {

/// Values that follow from the structure of a problem and a key, but from no size. Each is made once for all problems
/// of the structure. Any thread may ask.
class DerivedValues {
 public:
  /// `make` gives the value; two threads that ask at once may both make it, and have the same one.
  template <class Value, class Make>
  std::shared_ptr<const Value> get(const Bytes& key, const Make& make) {
    std::string name = concat_key(typeid(Value).name(), key);
    {
      const std::scoped_lock lock(mutex_);
      if (const auto found = values_.find(name); found != values_.end())
        return std::static_pointer_cast<const Value>(found->second);
    }
    auto made = std::make_shared<const Value>(make());
    const std::scoped_lock lock(mutex_);
    const auto [kept, added] = values_.try_emplace(std::move(name), std::move(made));
    return std::static_pointer_cast<const Value>(kept->second);
  }

 private:
  static std::string concat_key(const char* type, const Bytes& key) {
    std::string name(type);
    return name.append(1, '\0').append(reinterpret_cast<const char*>(key.data()), key.size());
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const void>> values_;
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
