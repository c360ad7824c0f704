#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "ir/op_table.hpp"
#include "support/committed_file.hpp"

namespace scoremod::ir {
namespace {

constexpr const char* kPage = SCOREMOD_TEST_SOURCE_DIR "/../docs/reference/ops.md";

const char* types_of(const OpInfo& row) {
  switch (row.op) {
    case Op::kScore:
    case Op::kUpstream:
    case Op::kScale: return "f32";
    case Op::kConstant:
    case Op::kOperand: return "T";
    case Op::kGather: return "i32, ... -> T";
    case Op::kToF32: return "T -> f32";
    case Op::kToI32: return "T -> i32";
    case Op::kToBool: return "T -> bool";
    default: break;
  }
  switch (row.signature) {
    case Signature::kLeaf: return "i32";
    case Signature::kFloatUnary: return "f32 -> f32";
    case Signature::kNumberUnary: return "N -> N";
    case Signature::kFloatBinary: return "f32, f32 -> f32";
    case Signature::kNumberBinary: return "N, N -> N";
    case Signature::kIntBinary: return "i32, i32 -> i32";
    case Signature::kEquality: return "T, T -> bool";
    case Signature::kOrdering: return "N, N -> bool";
    case Signature::kBoolBinary: return "bool, bool -> bool";
    case Signature::kBoolUnary: return "bool -> bool";
    case Signature::kSelect: return "bool, T, T -> T";
    case Signature::kCast: return "";
  }
  return "";
}

/// How the op is written in the text form.
std::string text_of(const OpInfo& row) {
  switch (row.op) {
    case Op::kConstant: return "1, 1.5, true";
    case Op::kOperand: return "name";
    case Op::kGather: return "name[i, j]";
    case Op::kSelect: return "select(c, x, y)";
    default: break;
  }
  const std::string name = row.name;
  switch (row.notation) {
    case Notation::kKeyword: return name;
    case Notation::kCall: return name + (row.arity == 1 ? "(x)" : "(x, y)");
    case Notation::kInfix: return "x " + name + " y";
    case Notation::kPrefix: return name + "x";
  }
  return "";
}

/// A bar would end the table's cell.
std::string cell(std::string text) {
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, 1, '\\');
  return text;
}

std::string page() {
  std::ostringstream out;
  out << "# Ops\n\n"
         "You can look up here what a program is made of. This page is the op table of `src/ir/op_table.cpp`.\n\n"
         "`N` stands for f32 or i32 and `T` for f32, i32 or bool, the same one throughout a line. f32 arithmetic is "
         "IEEE 754\n"
         "single precision; i32 arithmetic is two's complement and wraps. A NaN argument gives NaN unless the line "
         "says\n"
         "otherwise. Nothing converts silently: `f32()`, `i32()` and `bool()` do when asked.\n\n"
         "| text | types | meaning | edge cases |\n| --- | --- | --- | --- |\n";
  for (const OpInfo& row : op_table()) {
    out << "| `" << cell(text_of(row)) << "` | " << types_of(row) << " | " << cell(row.meaning) << " | "
        << (cell(row.edge_cases).empty() ? "none" : cell(row.edge_cases)) << " |\n";
  }
  out << "\nIn C++ the functions have the same names and the operators are C++'s, except: `x // y` is `floor_div(x, "
         "y)`,\n"
         "`&`, `|` and `!` may also be written `&&`, `||` and `!`, and `bool(x)` is `to_bool(x)`.\n";
  return out.str();
}

TEST(OpsPage, IsTheOpTable) { test::expect_committed(kPage, page()); }

}  // namespace
}  // namespace scoremod::ir
