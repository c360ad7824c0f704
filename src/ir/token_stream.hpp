#pragma once

#include <string>
#include <string_view>

#include "base/fail.hpp"
#include "ir/foreign_words.hpp"
#include "ir/lexer.hpp"

namespace scoremod::ir {

/// For a message: the token in quotes, cut where it is long.
inline std::string describe(const Token& token) {
  if (token.kind == TokenKind::kEnd) return "the end of the text";
  if (token.kind == TokenKind::kEndOfStatement) return "the end of the statement";
  constexpr std::size_t kShown = 40;
  return concat("'", token.text.substr(0, kShown), token.text.size() > kShown ? "..." : "", "'");
}

/// The tokens of a program's text, with one to look at before it is taken.
class TokenStream {
 public:
  explicit TokenStream(std::string_view source) : source_(source), lexer_(source), peeked_(lexer_.next()) {}

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

  /// Runs an action that may refuse its input, and gives the refusal the token's place.
  template <class Action>
  auto located(const Token& token, Action action) const {
    try {
      return action();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      fail(token, error.what());
    }
  }

 private:
  std::string_view source_;
  Lexer lexer_;
  Token peeked_;
};

}  // namespace scoremod::ir
