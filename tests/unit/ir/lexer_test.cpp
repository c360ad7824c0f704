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

}  // namespace
}  // namespace scoremod::ir
