#pragma once

#include <concepts>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace scoremod {

/// Each appends the text of operator<<, without making a stream, which takes longer than most texts do.
void append_part(std::string& text, std::string_view part);
void append_part(std::string& text, long long number);
void append_part(std::string& text, unsigned long long number);
void append_part(std::string& text, double number);  ///< six digits, as a stream writes it

/// Joins its arguments into one text, each as operator<< would write it.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  const auto append = [&text]<class Part>(const Part& part) {
    static_assert(!std::is_function_v<Part>, "a stream's manipulator changes nothing here");
    if constexpr (std::convertible_to<const Part&, std::string_view>) {
      append_part(text, std::string_view(part));
    } else if constexpr (std::same_as<Part, char>) {
      text += part;
    } else if constexpr (std::same_as<Part, float> || std::same_as<Part, double>) {
      append_part(text, static_cast<double>(part));
    } else if constexpr (std::signed_integral<Part> && sizeof(Part) > 1) {
      append_part(text, static_cast<long long>(part));
    } else if constexpr (std::same_as<Part, bool> || (std::unsigned_integral<Part> && sizeof(Part) > 1)) {
      append_part(text, static_cast<unsigned long long>(part));
    } else {
      std::ostringstream stream;
      stream << part;
      append_part(text, stream.view());
    }
  };
  (append(parts), ...);
  return text;
}

}  // namespace scoremod
