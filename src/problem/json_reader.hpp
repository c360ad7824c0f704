#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace scoremod::problem {

using Json = nlohmann::json;

/// Reads JSON text (RFC 8259) strictly: no repeated field, no comments, no NaN, nesting and size bounded.
/// Throws Error(kInvalidArgument) with the line and column.
Json read_json(std::string_view text);

/// The fields of a JSON object. Every message has the path of the field.
class Fields {
 public:
  /// `path` is that of the object, empty for the file itself. Refuses a value that is no object, and fields other than
  /// `known`, with the nearest of these names.
  Fields(const Json& value, std::string path, std::vector<std::string> known);

  /// The field of this name, or null when it is absent.
  const Json* find(const std::string& name) const;
  /// The field of this name; refuses its absence. `what` describes the field.
  const Json& require(const std::string& name, const char* what) const;
  /// The path of a field: "q.strides", "operands[1].shape".
  std::string path_of(const std::string& name) const;

 private:
  const Json& value_;
  std::string path_;
  std::vector<std::string> known_;
};

/// Describes a value for messages: "the string \"abc\"", "an object".
std::string describe(const Json& value);

// The value as a type; each refuses every other kind of value.
std::int64_t as_integer(const Json& value, const std::string& path);
/// Finite, because JSON has no other numbers.
double as_number(const Json& value, const std::string& path);
/// Within the range of f32, to which it is rounded.
float as_float(const Json& value, const std::string& path);
bool as_bool(const Json& value, const std::string& path);
const std::string& as_string(const Json& value, const std::string& path);
/// Refuses values that are no array.
const Json& as_array(const Json& value, const std::string& path, const char* of_what);
std::vector<std::int64_t> as_integers(const Json& value, const std::string& path);

}  // namespace scoremod::problem
