#include "ir/parse.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/fail.hpp"
#include "base/nearest_name.hpp"
#include "ir/builder.hpp"
#include "ir/foreign_words.hpp"
#include "ir/lexer.hpp"

namespace scoremod::ir {
namespace {

/// Expressions nested deeper than this are refused: the parser recurses.
constexpr int kMaxDepth = 200;
constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

const std::vector<std::string> kStatements{"operand", "table", "let", "value", "keep", "d_score", "accumulate"};

class Parser {
 public:
  explicit Parser(std::string_view source) : source_(source), lexer_(source), peeked_(lexer_.next()) {}

  Program run();

 private:
  // Tokens.
  const Token& peek() const { return peeked_; }
  Token next() {
    const Token token = peeked_;
    peeked_ = lexer_.next();
    return token;
  }
  bool at_symbol(std::string_view text) const { return peek().kind == TokenKind::kSymbol && peek().text == text; }
  bool accept(std::string_view symbol) {
    if (!at_symbol(symbol)) return false;
    next();
    return true;
  }
  void expect(std::string_view symbol, const char* where) {
    if (accept(symbol)) return;
    fail(peek(), concat("expected '", symbol, "' ", where, ", found ", describe(peek()), own_word(peek().text)));
  }
  [[noreturn]] void fail(const Token& token, const std::string& message) const {
    fail_at(source_, token.offset, message);
  }

  static std::string describe(const Token& token) {
    if (token.kind == TokenKind::kEnd) return "the end of the text";
    if (token.kind == TokenKind::kEndOfStatement) return "the end of the statement";
    constexpr std::size_t kShown = 40;
    return concat("'", token.text.substr(0, kShown), token.text.size() > kShown ? "..." : "", "'");
  }

  /// Runs what may refuse its input, and gives the refusal the token's place.
  template <class Action>
  auto located(const Token& token, Action action) const {
    try {
      return action();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      fail(token, error.what());
    }
  }

  // Statements.
  void statement() {
    if (peek().kind == TokenKind::kEndOfStatement) {
      next();
      return;
    }
    const Token word = next();
    if (word.text == "operand")
      declare_operand();
    else if (word.text == "table")
      declare_table();
    else if (word.text == "let")
      let();
    else if (word.text == "value")
      root(word, RootKind::kValue);
    else if (word.text == "keep")
      root(word, RootKind::kKeep);
    else if (word.text == "d_score")
      root(word, RootKind::kScoreAdjoint);
    else if (word.text == "accumulate")
      accumulate();
    else
      fail(word, concat("expected operand, table, let, value, keep, d_score or accumulate, found ", describe(word),
                        suggestion(word.text, kStatements)));
    if (peek().kind != TokenKind::kEndOfStatement) {
      fail(peek(),
           concat("expected the end of the statement or an operator, found ", describe(peek()), own_word(peek().text)));
    }
    next();
  }

  Type type() {
    const Token token = next();
    for (const Type candidate : {Type::kF32, Type::kI32, Type::kBool}) {
      if (token.text == to_string(candidate)) return candidate;
    }
    fail(token, concat("expected a type (f32, i32 or bool), found ", describe(token)));
  }

  Token operand_name() {
    const Token name = next();
    if (name.kind != TokenKind::kName) fail(name, concat("expected the operand's name, found ", describe(name)));
    return name;
  }

  void declare_operand() {
    const Token name = operand_name();
    OperandDecl decl{std::string(name.text), Type::kF32, {}, 0};
    expect(":", "after the operand's name");
    decl.type = type();
    expect("[", "before the operand's axes");
    int last = -1;
    while (!at_symbol("]")) {
      if (last >= 0) expect(",", "between axes");
      const Token token = next();
      const auto axis = find_axis(token.text);
      if (!axis) fail(token, concat("expected an axis (b, h, q_idx or kv_idx), found ", describe(token)));
      if (static_cast<int>(*axis) <= last) fail(token, "expected the axes in the order b, h, q_idx, kv_idx, each once");
      last = static_cast<int>(*axis);
      decl.axes[static_cast<std::size_t>(last)] = true;
    }
    next();
    declare(name, decl);
  }

  void declare_table() {
    const Token name = operand_name();
    OperandDecl decl{std::string(name.text), Type::kF32, {}, 1};
    expect(":", "after the table's name");
    decl.type = type();
    const Token word = next();
    if (word.text != "rank")
      fail(word, concat("expected 'rank' and a number after the table's type, found ", describe(word)));
    const Token rank = next();
    if (rank.text.size() != 1 || rank.text[0] < '1' || rank.text[0] > '0' + kMaxTableRank) {
      fail(rank, concat("expected a rank of 1 to ", kMaxTableRank, ", found ", describe(rank)));
    }
    decl.table_rank = rank.text[0] - '0';
    declare(name, decl);
  }

  void declare(const Token& name, const OperandDecl& decl) {
    if (names_.contains(name.text)) fail(name, concat("'", name.text, "' is already the name of a value"));
    operands_[name.text] = located(name, [&] { return builder_.declare(decl); });
  }

  void let() {
    const Token name = next();
    if (name.kind != TokenKind::kLocal && !is_identifier(name.text))
      fail(name, concat("expected a name, found ", describe(name)));
    if (is_reserved(name.text))
      fail(name, concat("'", name.text, "' is a word of the program language; choose another name"));
    if (names_.contains(name.text) || operands_.contains(name.text))
      fail(name, concat("'", name.text, "' already has a meaning"));
    expect("=", "after the name");
    names_[name.text] = expression(kOrPrecedence);
  }

  void root(const Token& word, RootKind kind) {
    for (const Root& other : roots_) {
      if (other.kind == kind) fail(word, concat("'", word.text, "' is given twice; keep one"));
    }
    expect("=", concat("after '", word.text, "'").c_str());
    const Type type = kind == RootKind::kKeep ? Type::kBool : Type::kF32;
    roots_.push_back({kind, typed_expression(word.text, type), 0, {kNoNode, kNoNode, kNoNode, kNoNode}});
  }

  /// An expression that must have a type.
  NodeId typed_expression(std::string_view of_what, Type type) {
    const Token first = peek();
    const NodeId node = expression(kOrPrecedence);
    const Type found = builder_.node(node).type;
    if (found != type) {
      fail(first, concat("'", of_what, "' must be ", to_string(type), ", found ", to_string(found),
                         type == Type::kF32 ? "; convert with f32()" : "; write a comparison, or convert with bool()"));
    }
    return node;
  }

  void accumulate() {
    const Token name = next();
    const auto found = operands_.find(name.text);
    if (found == operands_.end()) fail(name, concat("expected a declared operand, found ", describe(name)));
    Root made{RootKind::kOperandAdjoint, kNoNode, found->second, {kNoNode, kNoNode, kNoNode, kNoNode}};
    const OperandDecl& decl = builder_.operands()[made.operand];
    if (decl.type != Type::kF32)
      fail(name, concat("operand '", decl.name, "' is ", to_string(decl.type), ", not f32: it has no gradient"));
    if (decl.is_table()) {
      const std::vector<NodeId> indices = index_list();
      if (indices.size() != static_cast<std::size_t>(decl.table_rank)) {
        fail(name,
             concat("table '", decl.name, "' has rank ", decl.table_rank, ", found ", indices.size(), " indices"));
      }
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const Type type = builder_.node(indices[i]).type;
        if (type != Type::kI32) {
          fail(name, concat("table '", decl.name, "': index ", i, " must be i32, found ", to_string(type),
                            "; convert with i32()"));
        }
        made.indices[i] = indices[i];
      }
    }
    expect("+=", "after what is accumulated");
    made.node = typed_expression("accumulate", Type::kF32);
    roots_.push_back(made);
  }

  // Expressions.
  NodeId expression(int minimum) {
    const Token first = peek();
    if (++depth_ > kMaxDepth)
      fail(first, concat("expressions nest at most ", kMaxDepth, " deep; name parts with 'let'"));
    NodeId left = prefix();
    while (peek().kind == TokenKind::kSymbol) {
      const auto op = find_infix(peek().text);
      if (!op) break;
      const int precedence = info(*op).precedence;
      if (precedence < minimum) break;
      const Token symbol = next();
      refuse_doubled(symbol);
      const NodeId right = expression(precedence + 1);
      left = located(symbol, [&] { return builder_.make(*op, {left, right}); });
      if (precedence == kComparePrecedence && at_comparison()) {
        fail(peek(), "comparisons do not chain; write 'a < b & b < c'");
      }
    }
    --depth_;
    return left;
  }

  /// "&&", "||" and "**", which are two symbols here.
  void refuse_doubled(const Token& symbol) const {
    const Token& second = peek();
    if (second.text != symbol.text || second.offset != symbol.offset + symbol.text.size()) return;
    const std::string doubled = concat(symbol.text, second.text);
    const std::string own = own_word(doubled);
    if (!own.empty()) fail(symbol, concat("'", doubled, "' is no operator", own));
  }

  bool at_comparison() const {
    if (peek().kind != TokenKind::kSymbol) return false;
    const auto op = find_infix(peek().text);
    return op && info(*op).precedence == kComparePrecedence;
  }

  NodeId prefix() {
    const Token token = peek();
    if (accept("-")) {
      const Token& operand = peek();
      if (operand.kind == TokenKind::kInteger || operand.kind == TokenKind::kFloat || operand.text == "inf") {
        return literal(next(), true);
      }
      const NodeId arg = expression(kPrefixPrecedence);
      return located(token, [&] { return builder_.make(Op::kNeg, {arg}); });
    }
    if (accept("!")) {
      const NodeId arg = expression(kPrefixPrecedence);
      return located(token, [&] { return builder_.make(Op::kNot, {arg}); });
    }
    return primary();
  }

  NodeId primary() {
    const Token token = next();
    switch (token.kind) {
      case TokenKind::kInteger:
      case TokenKind::kFloat: return literal(token, false);
      case TokenKind::kLocal: return named(token);
      case TokenKind::kName: return word(token);
      default: break;
    }
    if (token.text != "(") fail(token, concat("expected a value, found ", describe(token)));
    const NodeId inner = expression(kOrPrecedence);
    expect(")", "to close '('");
    return inner;
  }

  NodeId word(const Token& token) {
    if (token.text == "true" || token.text == "false") return builder_.constant(token.text == "true");
    if (token.text == "inf" || token.text == "nan") return literal(token, false);
    if (const auto op = find_op(token.text)) return call(token, *op);
    for (const Op leaf :
         {Op::kScore, Op::kUpstream, Op::kScale, Op::kBatchIdx, Op::kHeadIdx, Op::kQueryIdx, Op::kKeyIdx}) {
      if (token.text == info(leaf).name) return builder_.leaf(leaf);
    }
    const auto operand = operands_.find(token.text);
    if (operand == operands_.end()) return named(token);
    if (!at_symbol("[")) return located(token, [&] { return builder_.operand(operand->second); });
    const std::vector<NodeId> indices = index_list();
    return located(token, [&] { return builder_.gather(operand->second, indices); });
  }

  NodeId named(const Token& token) {
    const auto found = names_.find(token.text);
    if (found != names_.end()) return found->second;
    fail(
        token,
        concat(describe(token),
               " has no meaning here: expected score, qk_scale, b, h, q_idx, kv_idx, a function, a declared operand or "
               "a name given with 'let' before",
               hint(token)));
  }

  /// What may have been meant by a name without a meaning.
  std::string hint(const Token& token) const {
    const std::string own = own_word(token.text);
    if (!own.empty() || token.kind != TokenKind::kName) return own;
    if (at_symbol("(")) return function_hint(token.text);
    std::vector<std::string> known{"score", "q_idx", "kv_idx"};
    for (const auto& [name, operand] : operands_) known.emplace_back(name);
    for (const auto& [name, node] : names_) known.emplace_back(name);
    return suggestion(token.text, known);
  }

  NodeId call(const Token& name, Op op) {
    expect("(", concat("after '", name.text, "'").c_str());
    const std::vector<NodeId> args = list(")");
    return located(name, [&] { return builder_.make(op, args); });
  }

  std::vector<NodeId> index_list() {
    expect("[", "before the table's indices");
    return list("]");
  }

  std::vector<NodeId> list(std::string_view close) {
    std::vector<NodeId> values;
    while (!accept(close)) {
      if (!values.empty()) expect(",", concat("or '", close, "' after an argument").c_str());
      values.push_back(expression(kOrPrecedence));
    }
    return values;
  }

  NodeId literal(const Token& token, bool negative) {
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
        fail(token, concat("'", text, "' does not fit i32; write a float (", text, ".0)?"));
      return builder_.constant(value);
    }
    float value = 0;
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) fail(token, concat("'", text, "' is outside the range of f32"));
    return builder_.constant(value);
  }

  std::string_view source_;
  Lexer lexer_;
  Token peeked_;
  int depth_ = 0;
  Builder builder_;
  std::map<std::string_view, std::uint32_t> operands_;
  std::map<std::string_view, NodeId> names_;
  std::vector<Root> roots_;
};

Program Parser::run() {
  while (peek().kind != TokenKind::kEnd) statement();
  // Statements may come in any order; roots have one, and contributions to one operand keep theirs.
  std::vector<std::tuple<RootKind, std::uint32_t, std::size_t>> order;
  for (std::size_t i = 0; i < roots_.size(); ++i) order.emplace_back(roots_[i].kind, roots_[i].operand, i);
  std::sort(order.begin(), order.end());
  std::vector<Root> roots;
  for (const auto& [kind, operand, i] : order) roots.push_back(roots_[i]);
  return located(peek(), [&] { return builder_.finish(roots); });
}

}  // namespace

Program parse(std::string_view text) {
  if (text.size() > kMaxTextBytes)
    fail_argument("program text: expected at most ", kMaxTextBytes, " bytes, found ", text.size());
  return Parser(text).run();
}

}  // namespace scoremod::ir
