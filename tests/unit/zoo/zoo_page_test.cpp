#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "support/committed_file.hpp"

namespace scoremod::zoo {
namespace {

constexpr const char* kPage = SCOREMOD_TEST_SOURCE_DIR "/../docs/reference/zoo.md";

std::string text_of(const Value& value) {
  std::ostringstream out;
  if (const auto* flag = std::get_if<bool>(&value)) {
    out << (*flag ? "true" : "false");
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    out << '"' << *text << '"';
  } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    out << *integer;
  } else {
    out << std::get<double>(value);
  }
  return out.str();
}

/// A bar would end the table's cell.
std::string cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, 1, '\\');
  return text;
}

void write_entry(const Entry& entry, std::ostream& out) {
  out << "### " << entry.name << "\n\n" << entry.summary << "\n\n";
  if (!entry.parameters.empty()) out << "| parameter | type | default | meaning |\n| --- | --- | --- | --- |\n";
  for (const Parameter& parameter : entry.parameters) {
    out << "| `" << parameter.name << "` | " << to_string(parameter.type) << " | "
        << (parameter.default_value ? "`" + text_of(*parameter.default_value) + "`" : std::string("needed")) << " | "
        << cell(parameter.meaning) << " |\n";
  }
  if (!entry.parameters.empty()) out << "\n";
  for (const OperandRule& operand : entry.operands) {
    out << "Operand `" << operand.parameter << "`: " << scoremod::to_string(operand.type) << " " << operand.shape
        << ", " << operand.meaning << ".\n\n";
  }
}

std::string page() {
  std::ostringstream out;
  out << "# Ready-made modifiers\n\n"
         "You can use these functions by name: in problem files, in C++ and, most of them, in `scoremod.jax.zoo`.\n\n"
         "```json\n{\"score_mod\": [{\"name\": \"soft_cap\", \"cap\": 50}], \"mask_mod\": [\"causal\"]}\n```\n\n"
         "`scoremod/zoo.hpp` names the source of each. This page is printed from the entries that tools use.\n\n"
         "`s` is the score, `b`, `h`, `q` and `kv` are the global batch, query head, query and key positions. A "
         "parameter of\n"
         "type name is the name of an operand; of type axes, a list such as `\"h, kv_idx\"`. Several score_mods apply "
         "in order:\n"
         "the first gets the score. Several mask_mods keep what all of them keep.\n";
  for (const Kind kind : {Kind::kScoreMod, Kind::kMaskMod}) {
    out << "\n## " << (kind == Kind::kScoreMod ? "Score modifiers" : "Mask modifiers") << "\n\n";
    for (const Entry& entry : entries()) {
      if (entry.kind == kind) write_entry(entry, out);
    }
  }
  std::string text = out.str();
  while (text.ends_with("\n\n")) text.pop_back();
  return text;
}

TEST(ZooPage, IsTheListOfEntries) { test::expect_committed(kPage, page()); }

}  // namespace
}  // namespace scoremod::zoo
