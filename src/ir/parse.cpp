#include "ir/parse.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "base/fail.hpp"
#include "base/nearest_name.hpp"
#include "ir/builder.hpp"
#include "ir/expression_parser.hpp"
#include "ir/token_stream.hpp"

namespace scoremod::ir {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

const std::vector<std::string> kStatements{"operand", "table", "let", "value", "keep", "d_score", "accumulate"};

/// Reads statements.
class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(source) {}

  Program run();

 private:
  void statement() {
    if (tokens_.peek().kind == TokenKind::kEndOfStatement) {
      tokens_.next();
      return;
    }
    const Token word = tokens_.next();
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
      tokens_.fail(word, concat("expected operand, table, let, value, keep, d_score or accumulate, found ",
                                describe(word), suggestion(word.text, kStatements)));
    if (tokens_.peek().kind != TokenKind::kEndOfStatement) {
      tokens_.fail(tokens_.peek(), concat("expected the end of the statement or an operator, found ",
                                          describe(tokens_.peek()), own_word(tokens_.peek().text)));
    }
    tokens_.next();
  }

  Type type() {
    const Token token = tokens_.next();
    for (const Type candidate : {Type::kF32, Type::kI32, Type::kBool}) {
      if (token.text == to_string(candidate)) return candidate;
    }
    tokens_.fail(token, concat("expected a type (f32, i32 or bool), found ", describe(token)));
  }

  Token operand_name() {
    const Token name = tokens_.next();
    if (name.kind != TokenKind::kName)
      tokens_.fail(name, concat("expected the operand's name, found ", describe(name)));
    return name;
  }

  void declare_operand() {
    const Token name = operand_name();
    OperandDecl decl{std::string(name.text), Type::kF32, {}, 0};
    tokens_.expect(":", "after the operand's name");
    decl.type = type();
    tokens_.expect("[", "before the operand's axes");
    int last = -1;
    while (!tokens_.at_symbol("]")) {
      if (last >= 0) tokens_.expect(",", "between axes");
      const Token token = tokens_.next();
      const auto axis = find_axis(token.text);
      if (!axis) tokens_.fail(token, concat("expected an axis (b, h, q_idx or kv_idx), found ", describe(token)));
      if (static_cast<int>(*axis) <= last)
        tokens_.fail(token, "expected the axes in the order b, h, q_idx, kv_idx, each once");
      last = static_cast<int>(*axis);
      decl.axes[static_cast<std::size_t>(last)] = true;
    }
    tokens_.next();
    declare(name, decl);
  }

  void declare_table() {
    const Token name = operand_name();
    OperandDecl decl{std::string(name.text), Type::kF32, {}, 1};
    tokens_.expect(":", "after the table's name");
    decl.type = type();
    const Token word = tokens_.next();
    if (word.text != "rank")
      tokens_.fail(word, concat("expected 'rank' and a number after the table's type, found ", describe(word)));
    const Token rank = tokens_.next();
    if (rank.text.size() != 1 || rank.text[0] < '1' || rank.text[0] > '0' + kMaxTableRank) {
      tokens_.fail(rank, concat("expected a rank of 1 to ", kMaxTableRank, ", found ", describe(rank)));
    }
    decl.table_rank = rank.text[0] - '0';
    declare(name, decl);
  }

  void declare(const Token& name, const OperandDecl& decl) {
    if (meanings_.values.contains(name.text))
      tokens_.fail(name, concat("'", name.text, "' is already the name of a value"));
    meanings_.operands[name.text] = tokens_.located(name, [&] { return builder_.declare(decl); });
  }

  void let() {
    const Token name = tokens_.next();
    if (name.kind != TokenKind::kLocal && !is_identifier(name.text))
      tokens_.fail(name, concat("expected a name, found ", describe(name)));
    if (is_reserved(name.text))
      tokens_.fail(name, concat("'", name.text, "' is a word of the program language; choose another name"));
    if (meanings_.values.contains(name.text) || meanings_.operands.contains(name.text))
      tokens_.fail(name, concat("'", name.text, "' already has a meaning"));
    tokens_.expect("=", "after the name");
    meanings_.values[name.text] = expressions_.expression();
  }

  void root(const Token& word, RootKind kind) {
    for (const Root& other : roots_) {
      if (other.kind == kind) tokens_.fail(word, concat("'", word.text, "' is given twice; keep one"));
    }
    tokens_.expect("=", concat("after '", word.text, "'").c_str());
    const Type type = kind == RootKind::kKeep ? Type::kBool : Type::kF32;
    roots_.push_back({kind, expressions_.typed_expression(word.text, type), 0, {kNoNode, kNoNode, kNoNode, kNoNode}});
  }

  void accumulate() {
    const Token name = tokens_.next();
    const auto found = meanings_.operands.find(name.text);
    if (found == meanings_.operands.end())
      tokens_.fail(name, concat("expected a declared operand, found ", describe(name)));
    Root made{RootKind::kOperandAdjoint, kNoNode, found->second, {kNoNode, kNoNode, kNoNode, kNoNode}};
    const OperandDecl& decl = builder_.operands()[made.operand];
    if (decl.type != Type::kF32)
      tokens_.fail(name,
                   concat("operand '", decl.name, "' is ", to_string(decl.type), ", not f32: it has no gradient"));
    if (decl.is_table()) {
      const std::vector<NodeId> indices = expressions_.index_list();
      if (indices.size() != static_cast<std::size_t>(decl.table_rank)) {
        tokens_.fail(
            name, concat("table '", decl.name, "' has rank ", decl.table_rank, ", found ", indices.size(), " indices"));
      }
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const Type type = builder_.node(indices[i]).type;
        if (type != Type::kI32) {
          tokens_.fail(name, concat("table '", decl.name, "': index ", i, " must be i32, found ", to_string(type),
                                    "; convert with i32()"));
        }
        made.indices[i] = indices[i];
      }
    }
    tokens_.expect("+=", "after what is accumulated");
    made.node = expressions_.typed_expression("accumulate", Type::kF32);
    roots_.push_back(made);
  }

  TokenStream tokens_;
  Builder builder_;
  Meanings meanings_;
  ExpressionParser expressions_{tokens_, builder_, meanings_};
  std::vector<Root> roots_;
};

Program Parser::run() {
  while (tokens_.peek().kind != TokenKind::kEnd) statement();
  // Statements may come in any order; roots have one, and contributions to one operand keep theirs.
  std::vector<std::tuple<RootKind, std::uint32_t, std::size_t>> order;
  for (std::size_t i = 0; i < roots_.size(); ++i) order.emplace_back(roots_[i].kind, roots_[i].operand, i);
  std::sort(order.begin(), order.end());
  std::vector<Root> roots;
  for (const auto& [kind, operand, i] : order) roots.push_back(roots_[i]);
  return tokens_.located(tokens_.peek(), [&] { return builder_.finish(roots); });
}

}  // namespace

Program parse(std::string_view text) {
  if (text.size() > kMaxTextBytes)
    fail_argument("program text: expected at most ", kMaxTextBytes, " bytes, found ", text.size());
  return Parser(text).run();
}

}  // namespace scoremod::ir
