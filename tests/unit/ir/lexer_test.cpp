#include "ir/lexer.hpp"

#include <gtest/gtest.h>

namespace scoremod::ir {
namespace {

TEST(Lexer, EndsTheLastStatementOnceAndTheTextAgainAndAgain) {
  Lexer lexer("value");
  EXPECT_EQ(lexer.next().kind, TokenKind::kName);
  EXPECT_EQ(lexer.next().kind, TokenKind::kEndOfStatement);
  EXPECT_EQ(lexer.next().kind, TokenKind::kEnd);
  EXPECT_EQ(lexer.next().kind, TokenKind::kEnd);
}

/// The last token of a text before its end.
Token last_of(std::string_view text) {
  Lexer lexer(text);
  Token last;
  for (Token token = lexer.next(); token.kind != TokenKind::kEndOfStatement; token = lexer.next()) last = token;
  return last;
}

TEST(Lexer, TakesAPercentSignForModuloBehindAValueAlone) {
  EXPECT_EQ(last_of("value = t[q_idx] %3").kind, TokenKind::kInteger);
  EXPECT_EQ(last_of("value = (q_idx) %3").kind, TokenKind::kInteger);
  EXPECT_EQ(last_of("value = q_idx %3").kind, TokenKind::kInteger);
  EXPECT_EQ(last_of("value = %3").kind, TokenKind::kLocal);
  EXPECT_EQ(last_of("value = t[%3").kind, TokenKind::kLocal);
}

}  // namespace
}  // namespace scoremod::ir
