#include "ir/expression_parser.hpp"

#include <charconv>
#include <limits>

#include "base/nearest_name.hpp"

namespace scoremod::ir {
namespace {

/// Expressions nested deeper than this are refused: the parser recurses.
constexpr int kMaxDepth = 200;

}  // namespace

NodeId ExpressionParser::typed_expression(std::string_view of_what, Type type) {
  const Token first = tokens_.peek();
  const NodeId node = expression(kOrPrecedence);
  const Type found = builder_.node(node).type;
  if (found != type) {
    tokens_.fail(first,
                 concat("'", of_what, "' must be ", to_string(type), ", found ", to_string(found),
                        type == Type::kF32 ? "; convert with f32()" : "; write a comparison, or convert with bool()"));
  }
  return node;
}

NodeId ExpressionParser::expression(int minimum) {
  const Token first = tokens_.peek();
  if (++depth_ > kMaxDepth)
    tokens_.fail(first, concat("expressions nest at most ", kMaxDepth, " deep; name parts with 'let'"));
  NodeId left = prefix();
  while (tokens_.peek().kind == TokenKind::kSymbol) {
    const auto op = find_infix(tokens_.peek().text);
    if (!op) break;
    const int precedence = info(*op).precedence;
    if (precedence < minimum) break;
    const Token symbol = tokens_.next();
    refuse_doubled(symbol);
    const NodeId right = expression(precedence + 1);
    left = tokens_.located(symbol, [&] { return builder_.make(*op, {left, right}); });
    if (precedence == kComparePrecedence && at_comparison()) {
      tokens_.fail(tokens_.peek(), "comparisons do not chain; write 'a < b & b < c'");
    }
  }
  --depth_;
  return left;
}

void ExpressionParser::refuse_doubled(const Token& symbol) const {
  const Token& second = tokens_.peek();
  if (second.text != symbol.text || second.offset != symbol.offset + symbol.text.size()) return;
  const std::string doubled = concat(symbol.text, second.text);
  const std::string own = own_word(doubled);
  if (!own.empty()) tokens_.fail(symbol, concat("'", doubled, "' is no operator", own));
}

bool ExpressionParser::at_comparison() const {
  if (tokens_.peek().kind != TokenKind::kSymbol) return false;
  const auto op = find_infix(tokens_.peek().text);
  return op && info(*op).precedence == kComparePrecedence;
}

NodeId ExpressionParser::prefix() {
  const Token token = tokens_.peek();
  if (tokens_.accept("-")) {
    const Token& operand = tokens_.peek();
    if (operand.kind == TokenKind::kInteger || operand.kind == TokenKind::kFloat || operand.text == "inf") {
      return literal(tokens_.next(), true);
    }
    const NodeId arg = expression(kPrefixPrecedence);
    return tokens_.located(token, [&] { return builder_.make(Op::kNeg, {arg}); });
  }
  if (tokens_.accept("!")) {
    const NodeId arg = expression(kPrefixPrecedence);
    return tokens_.located(token, [&] { return builder_.make(Op::kNot, {arg}); });
  }
  return primary();
}

NodeId ExpressionParser::primary() {
  const Token token = tokens_.next();
  switch (token.kind) {
    case TokenKind::kInteger:
    case TokenKind::kFloat: return literal(token, false);
    case TokenKind::kLocal: return named(token);
    case TokenKind::kName: return word(token);
    default: break;
  }
  if (token.text != "(") tokens_.fail(token, concat("expected a value, found ", describe(token)));
  const NodeId inner = expression(kOrPrecedence);
  tokens_.expect(")", "to close '('");
  return inner;
}

NodeId ExpressionParser::word(const Token& token) {
  if (token.text == "true" || token.text == "false") return builder_.constant(token.text == "true");
  if (token.text == "inf" || token.text == "nan") return literal(token, false);
  if (const auto op = find_op(token.text)) return call(token, *op);
  for (const Op leaf :
       {Op::kScore, Op::kUpstream, Op::kScale, Op::kBatchIdx, Op::kHeadIdx, Op::kQueryIdx, Op::kKeyIdx}) {
    if (token.text == info(leaf).name) return builder_.leaf(leaf);
  }
  const auto operand = meanings_.operands.find(token.text);
  if (operand == meanings_.operands.end()) return named(token);
  if (!tokens_.at_symbol("[")) return tokens_.located(token, [&] { return builder_.operand(operand->second); });
  const std::vector<NodeId> indices = index_list();
  return tokens_.located(token, [&] { return builder_.gather(operand->second, indices); });
}

NodeId ExpressionParser::named(const Token& token) {
  const auto found = meanings_.values.find(token.text);
  if (found != meanings_.values.end()) return found->second;
  tokens_.fail(
      token,
      concat(describe(token),
             " has no meaning here: expected score, qk_scale, b, h, q_idx, kv_idx, a function, a declared operand or "
             "a name given with 'let' before",
             hint(token)));
}

std::string ExpressionParser::hint(const Token& token) const {
  const std::string own = own_word(token.text);
  if (!own.empty() || token.kind != TokenKind::kName) return own;
  if (tokens_.at_symbol("(")) return function_hint(token.text);
  std::vector<std::string> known{"score", "q_idx", "kv_idx"};
  for (const auto& [name, operand] : meanings_.operands) known.emplace_back(name);
  for (const auto& [name, node] : meanings_.values) known.emplace_back(name);
  return suggestion(token.text, known);
}

NodeId ExpressionParser::call(const Token& name, Op op) {
  tokens_.expect("(", concat("after '", name.text, "'").c_str());
  const std::vector<NodeId> args = list(")");
  return tokens_.located(name, [&] { return builder_.make(op, args); });
}

std::vector<NodeId> ExpressionParser::index_list() {
  tokens_.expect("[", "before the table's indices");
  return list("]");
}

std::vector<NodeId> ExpressionParser::list(std::string_view close) {
  std::vector<NodeId> values;
  while (!tokens_.accept(close)) {
    if (!values.empty()) tokens_.expect(",", concat("or '", close, "' after an argument").c_str());
    values.push_back(expression(kOrPrecedence));
  }
  return values;
}

NodeId ExpressionParser::literal(const Token& token, bool negative) {
  if (token.text == "inf" || token.text == "nan") {
    using Limits = std::numeric_limits<float>;
    const float value = token.text == "inf" ? Limits::infinity() : Limits::quiet_NaN();
    return builder_.constant(negative ? -value : value);
  }
  const std::string text = (negative ? "-" : "") + std::string(token.text);
  const char* end = text.data() + text.size();
  if (token.kind == TokenKind::kInteger) {
    std::int32_t value = 0;
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end)
      tokens_.fail(token, concat("'", text, "' does not fit i32; write a float (", text, ".0)?"));
    return builder_.constant(value);
  }
  float value = 0;
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end)
    tokens_.fail(token, concat("'", text, "' is outside the range of f32"));
  return builder_.constant(value);
}

}  // namespace scoremod::ir
