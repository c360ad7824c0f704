#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/fail.hpp"

// Kernel text with named holes. The text is a .cuh file that compiles as it stands, because every hole holds a
// stand-in:
//
//     if (row >= /*{rows}*/ 64 /*{}*/) return;
//
// fill(text, {{"rows", 100}}) makes `if (row >= 100) return;` of it. Holes may be nested: repeated or optional text is
// a hole whose stand-in has holes of its own, and part() takes it out.
//
// cmake/EmbedText.cmake makes the constants scoremod::embedded::kName of the files.

namespace scoremod::backend::cuda {

/// A hole's name and its value, which is anything that can be printed.
struct Hole {
  template <class Value>
  Hole(std::string_view hole_name, const Value& value) : name(hole_name), text(concat(value)) {}

  std::string_view name;
  std::string text;
};

/// `text` with every hole filled; one name may stand in several places. A hole of the text without a value, a value
/// without a hole and a hole without an end are bugs, and Errors say which.
std::string fill(std::string_view text, std::initializer_list<Hole> holes);

/// The stand-in of the first hole of this name, wherever it lies.
std::string_view part(std::string_view text, std::string_view name);

}  // namespace scoremod::backend::cuda
