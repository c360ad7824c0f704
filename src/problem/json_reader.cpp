#include "problem/json_reader.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/fail.hpp"
#include "base/nearest_name.hpp"

namespace scoremod::problem {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{32} << 20;
/// A problem nests four deep; the bound keeps hostile text from costing more than its length.
constexpr int kMaxDepth = 32;
/// The JSON library quotes the last text that it read, however long and whatever bytes it has.
constexpr std::size_t kMaxQuoted = 300;

std::string printable(std::string text) {
  if (text.size() > kMaxQuoted) text = text.substr(0, kMaxQuoted) + "...";
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

/// The library's message without its own prefix "[json.exception.parse_error.101] ".
std::string reason_of(const Json::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.find("] ");
  return printable(end == std::string::npos ? text : text.substr(end + 2));
}

/// Watches for input that the parser would accept silently: repeated names and deep nesting.
class Watch {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kMaxDepth) fail_argument("expected JSON nested at most ", kMaxDepth, " deep, found more");
    }
    if (event == Event::object_start) names_.emplace_back();
    if (event == Event::object_end) names_.pop_back();
    if (event == Event::key && !names_.back().insert(parsed.get<std::string>()).second) {
      fail_argument("expected each field once, found '", printable(parsed.get<std::string>()),
                    "' twice in one object; remove one");
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> names_;
};

[[noreturn]] void fail_kind(const Json& value, const std::string& path, const char* expected) {
  fail_argument(path.empty() ? "the file" : path, ": expected ", expected, ", found ", describe(value));
}

}  // namespace

Json read_json(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    fail_argument("expected at most ", kMaxTextBytes, " bytes of JSON, found ", text.size());
  }
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    fail_argument("expected a JSON object, found nothing: the text is empty");
  }
  Watch watch;
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), [&watch](int depth, Json::parse_event_t event, Json& parsed) {
      return watch(depth, event, parsed);
    });
  } catch (const Json::exception& error) {
    fail_argument("expected JSON: ", reason_of(error));
  }
  // The JSON library takes a NUL for the end of the text, and ignores the rest.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_argument("expected JSON: the text to end behind the object, found a NUL as byte ", nul + 1, "; remove it");
  }
  return json;
}

Fields::Fields(const Json& value, std::string path, std::vector<std::string> known)
    : value_(value), path_(std::move(path)), known_(std::move(known)) {
  if (!value.is_object()) fail_kind(value, path_, "an object");
  for (const auto& [name, field] : value_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    fail_argument(printable(path_of(name)), ": this field has no meaning", suggestion(name, known_), "; expected ",
                  name_list(known_), "; rename or remove it");
  }
}

const Json* Fields::find(const std::string& name) const {
  if (std::find(known_.begin(), known_.end(), name) == known_.end()) fail_bug("field ", name, " is read but not known");
  const auto found = value_.find(name);
  return found == value_.end() ? nullptr : &*found;
}

const Json& Fields::require(const std::string& name, const char* what) const {
  const Json* value = find(name);
  if (value == nullptr) fail_argument(path_of(name), ": expected ", what, ", found no such field; add it");
  return *value;
}

std::string Fields::path_of(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }

std::string describe(const Json& value) {
  const auto quoted = [&] { return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace)); };
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "the array " + quoted();
    case Json::value_t::string: return "the string " + quoted();
    case Json::value_t::boolean: return quoted();
    default: return "the number " + quoted();
  }
}

std::int64_t as_integer(const Json& value, const std::string& path) {
  if (!value.is_number_integer()) fail_kind(value, path, "an integer");
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMax) fail_kind(value, path, "an integer below 2^63");
  return value.get<std::int64_t>();
}

double as_number(const Json& value, const std::string& path) {
  if (!value.is_number()) fail_kind(value, path, "a number");
  return value.get<double>();
}

float as_float(const Json& value, const std::string& path) {
  const double number = as_number(value, path);
  if (std::abs(number) > double{std::numeric_limits<float>::max()})
    fail_kind(value, path, "a number within the range of f32");
  return static_cast<float>(number);
}

bool as_bool(const Json& value, const std::string& path) {
  if (!value.is_boolean()) fail_kind(value, path, "true or false");
  return value.get<bool>();
}

const std::string& as_string(const Json& value, const std::string& path) {
  if (!value.is_string()) fail_kind(value, path, "a string");
  return value.get_ref<const std::string&>();
}

const Json& as_array(const Json& value, const std::string& path, const char* of_what) {
  if (!value.is_array()) fail_kind(value, path, of_what);
  return value;
}

std::vector<std::int64_t> as_integers(const Json& value, const std::string& path) {
  std::vector<std::int64_t> integers;
  for (const Json& element : as_array(value, path, "an array of integers")) {
    integers.push_back(as_integer(element, concat(path, "[", integers.size(), "]")));
  }
  return integers;
}

}  // namespace scoremod::problem
