#include "ir/foreign_words.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/fail.hpp"
#include "base/nearest_name.hpp"
#include "base/pages.hpp"
#include "ir/op_table.hpp"

namespace scoremod::ir {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

constexpr std::array<Pair, 25> kWords{
    {{"&&", "&"},        {"||", "|"},         {"and", "&"},     {"or", "|"},         {"not", "!"},
     {"xor", "^"},       {"mod", "%"},        {"**", "pow"},    {"where", "select"}, {"if", "select"},
     {"maximum", "max"}, {"minimum", "min"},  {"fabs", "abs"},  {"int", "i32"},      {"int32", "i32"},
     {"float", "f32"},   {"float32", "f32"},  {"True", "true"}, {"False", "false"},  {"q", "q_idx"},
     {"kv", "kv_idx"},   {"k_idx", "kv_idx"}, {"batch", "b"},   {"head", "h"},       {"causal", "q_idx >= kv_idx"}}};

/// Functions that are close to the name of another one and mean something else.
constexpr std::array<std::string_view, 7> kUnlike{"asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh"};

}  // namespace

std::string own_word(std::string_view found) {
  const auto* row = std::ranges::find(kWords, found, &Pair::first);
  return row == kWords.end() ? "" : concat(" (did you mean '", row->second, "'?)");
}

std::string function_hint(std::string_view found) {
  std::vector<std::string> known;
  for (const OpInfo& row : op_table()) {
    if (row.notation == Notation::kCall) known.emplace_back(row.name);
  }
  const bool unlike = std::ranges::find(kUnlike, found) != kUnlike.end();
  return concat(unlike ? "" : suggestion(found, known), "; " SCOREMOD_PAGE("reference/ops") " lists the functions");
}

}  // namespace scoremod::ir
