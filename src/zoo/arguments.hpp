#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scoremod/zoo.hpp"

namespace scoremod::zoo {

/// The parameters of one call of make(), checked against the entry: defaults filled in, types and ranges as declared.
class Arguments {
 public:
  /// Throws Error(kInvalidArgument) for unknown, missing and wrongly typed parameters.
  Arguments(const Entry& entry, const Parameters& parameters);

  int integer(std::string_view name) const;
  float number(std::string_view name) const;
  bool flag(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  std::vector<Axis> axes(std::string_view name) const;

 private:
  const Value& value(std::string_view name) const;

  std::string entry_;
  Parameters values_;
};

}  // namespace scoremod::zoo
