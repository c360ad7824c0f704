#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "property/c_api/drawn_call.hpp"

namespace scoremod::test {

/// The effect of a change of a call.
enum class Effect : std::uint8_t {
  kSame,     ///< the call does what it did before
  kRefused,  ///< it is the caller's mistake
  kOther,    ///< it may be another right call, or a mistake
  kNeeds,    ///< it is a mistake where the backend needs workspace
};

/// A change of a call. It returns what it makes of it, or nothing where the call has no such thing to change.
struct Mistake {
  std::string name;
  std::optional<Effect> (*make)(DrawnCall&, std::mt19937_64&);
};

/// All kinds of them; each call draws one.
const std::vector<Mistake>& mistakes();

}  // namespace scoremod::test
