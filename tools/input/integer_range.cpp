#include "integer_range.hpp"

#include <charconv>

#include <CLI/CLI.hpp>

namespace scoremod::input {
namespace {

template <class Integer>
bool parse(const std::string& text, Integer& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

bool in_range(const std::string& text, std::int64_t low, std::uint64_t high) {
  std::int64_t negative = 0;
  if (text.starts_with('-')) return parse(text, negative) && negative >= low;
  std::uint64_t value = 0;
  return parse(text, value) && (low < 0 || value >= static_cast<std::uint64_t>(low)) && value <= high;
}

}  // namespace

CLI::Validator integer_range(std::int64_t low, std::uint64_t high) {
  const std::string range = std::to_string(low) + " to " + std::to_string(high);
  const auto check = [=](std::string& text) {
    return in_range(text, low, high) ? std::string() : "expected an integer from " + range + ", found '" + text + "'";
  };
  return {check, ""};
}

CLI::Option* add_threads(CLI::App& app, int& threads, const std::string& more_help) {
  constexpr int kMost = 1024;
  return app.add_option("--threads", threads, "CPU threads; 0 means one for each core" + more_help)
      ->check(integer_range(0, kMost));
}

}  // namespace scoremod::input
