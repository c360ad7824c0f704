#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "base/canonical_bytes.hpp"
#include "problem/problem_members.hpp"

namespace scoremod::problem {

/// Writes members of a problem as canonical bytes, each after its name, so that a problem of a version with another
/// member is another one. For visit_members().
struct ProblemWriter {
  CanonicalWriter out;

  void operator()(const char* name, const auto& member) {
    out.text(name);
    write(member);
  }

  void write(const std::int64_t& number) { out.integer(number); }
  void write(const bool& flag) { out.boolean(flag); }
  void write(const float& number) { out.real(number); }
  void write(const std::string& text) { out.text(text); }
  void write(const DType& dtype) { out.text(to_string(dtype)); }
  void write(const Layout& layout) { out.text(to_string(layout)); }
  void write(const Sink& sink) { out.text(to_string(sink)); }
  void write(const SequenceLengths& lengths) { visit_members(lengths, *this); }
  void write(const PagedKeys& paged) { visit_members(paged, *this); }
  void write(const Program& program) { out.text(program.to_string()); }
  void write(const TensorLayout& tensor) { visit_members(tensor, *this); }
  void write(const Strides& strides) { visit_members(strides, *this); }
  void write(const OperandSpec& operand) { visit_members(operand, *this); }
  template <class T>
  void write(const std::optional<T>& value) {
    out.boolean(value.has_value());
    if (value) write(*value);
  }
  template <class T>
  void write(const std::vector<T>& values) {
    out.list(values.size());
    for (const T& value : values) write(value);
  }
};

}  // namespace scoremod::problem
