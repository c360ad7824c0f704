#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace scoremod::ir {

enum class TokenKind { kName, kLocal, kInteger, kFloat, kSymbol, kEndOfStatement, kEnd };

/// A piece of program text. `text` points into the source.
struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;
  std::size_t offset = 0;
};

/// Reads program text token by token. A statement ends at ';' or at a line's end outside brackets; '#' starts a
/// comment.
class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  /// The next token; the last statement is ended before kEnd, which comes again and again. Throws
  /// Error(kInvalidArgument) with line, column and caret at a character that no token starts with.
  Token next();

 private:
  void skip_blanks();
  Token read(std::string_view rest);
  Token symbol(std::string_view rest);
  Token take(TokenKind kind, std::size_t length);
  bool expects_value() const;

  std::string_view source_;
  std::size_t at_ = 0;
  int depth_ = 0;
  Token last_{TokenKind::kEndOfStatement, {}, 0};
};

/// "line L, column C: message", then the source line and a caret below the place.
[[noreturn]] void fail_at(std::string_view source, std::size_t offset, const std::string& message);

/// Letters, digits and '_', no digit first.
bool is_identifier(std::string_view text);
/// True for a word with a meaning in the program language.
bool is_reserved(std::string_view name);

}  // namespace scoremod::ir
