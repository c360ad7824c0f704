#include <string_view>

#include <nlohmann/json.hpp>

#include "scoremod/problem.hpp"

#include "problem/problem_members.hpp"

namespace scoremod {
namespace problem {
namespace {

/// Keeps the fields in the order in which docs/reference/problem.md has them.
using OrderedJson = nlohmann::ordered_json;

/// The program's text, a list with one string for each line.
OrderedJson program_json(const Program& program) {
  OrderedJson lines = OrderedJson::array();
  const std::string text = program.to_string();
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

/// An open size is null.
OrderedJson size_json(std::int64_t number) { return number == kOpenSize ? OrderedJson(nullptr) : OrderedJson(number); }

/// Writes members as fields of an object. Absent fields are left out, and so are defaults that every file would repeat.
struct JsonWriter {
  OrderedJson& json;

  void operator()(const char* name, const std::int64_t& number) const { json[name] = size_json(number); }
  void operator()(const char* name, const float& number) const { json[name] = number; }
  void operator()(const char* name, const bool& flag) const {
    // One flag is on unless a file says otherwise, and two are of few problems.
    const std::string_view field = name;
    const bool is_of_few = field == "amax_o" || field == "amax_gradients";
    const bool is_left_out = field == "gradient" ? flag : is_of_few && !flag;
    if (!is_left_out) json[name] = flag;
  }
  void operator()(const char* name, const std::string& text) const { json[name] = text; }
  void operator()(const char* name, const DType& dtype) const { json[name] = to_string(dtype); }
  void operator()(const char* name, const Layout& layout) const { json[name] = to_string(layout); }
  void operator()(const char* name, const SequenceLengths& lengths) const { json[name] = members(lengths); }
  void operator()(const char* name, const Sink& sink) const { json[name] = to_string(sink); }
  void operator()(const char* name, const Program& program) const { json[name] = program_json(program); }
  void operator()(const char* name, const TensorLayout& tensor) const {
    if (!tensor.strides)
      json[name] = to_string(tensor.layout);
    else
      json[name] = members(tensor);
  }
  void operator()(const char* name, const PagedKeys& paged) const { json[name] = members(paged); }
  void operator()(const char* name, const Strides& strides) const { json[name] = members(strides); }
  template <class T>
  void operator()(const char* name, const std::optional<T>& value) const {
    if (value) (*this)(name, *value);
  }
  void operator()(const char* name, const std::vector<std::int64_t>& numbers) const {
    // A shape may be empty and is said; strides are empty where the tensor is dense.
    if (std::string_view(name) == "strides" && numbers.empty()) return;
    json[name] = OrderedJson::array();
    for (const std::int64_t number : numbers) json[name].push_back(size_json(number));
  }
  void operator()(const char* name, const std::vector<OperandSpec>& operands) const {
    json[name] = OrderedJson::array();
    for (const OperandSpec& operand : operands) json[name].push_back(members(operand));
  }

  template <class Struct>
  static OrderedJson members(const Struct& value) {
    OrderedJson object;
    visit_members(value, JsonWriter{object});
    return object;
  }
};

}  // namespace
}  // namespace problem

std::string to_json(const AttentionProblem& problem) { return problem::JsonWriter::members(problem).dump(2) + "\n"; }

}  // namespace scoremod
