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

/// Splits program text into tokens. A statement ends at ';' or at a line's end outside brackets; '#' starts a comment.
/// Throws Error(kInvalidArgument) with line, column and caret at a character that no token starts with.
std::vector<Token> tokenize(std::string_view source);

/// "line L, column C: message", then the source line and a caret below the place.
[[noreturn]] void fail_at(std::string_view source, std::size_t offset, const std::string& message);

/// Letters, digits and '_', no digit first.
bool is_identifier(std::string_view text);
/// True for a word with a meaning in the program language.
bool is_reserved(std::string_view name);

}  // namespace scoremod::ir
