#include "base/concat.hpp"

#include <array>
#include <charconv>

namespace scoremod {
namespace {

template <class Number, class... Format>
void append_number(std::string& text, Number number, Format... format) {
  std::array<char, 32> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), number, format...);
  text.append(digits.data(), written.ptr);
}

}  // namespace

void append_part(std::string& text, std::string_view part) { text += part; }
void append_part(std::string& text, long long number) { append_number(text, number); }
void append_part(std::string& text, unsigned long long number) { append_number(text, number); }
void append_part(std::string& text, double number) { append_number(text, number, std::chars_format::general, 6); }

}  // namespace scoremod
