#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.hpp"
#include "ir/token_stream.hpp"

namespace scoremod::ir {

/// The names that expressions may use so far, with their meanings.
struct Meanings {
  std::map<std::string_view, std::uint32_t> operands;
  std::map<std::string_view, NodeId> values;  ///< given with 'let'
};

/// Reads expressions and builds their nodes, by precedence climbing. Every function throws Error(kInvalidArgument) that
/// shows the place. All that it is made with must outlive it.
class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, Builder& builder, const Meanings& meanings)
      : tokens_(tokens), builder_(builder), meanings_(meanings) {}

  NodeId expression() { return expression(kOrPrecedence); }
  /// An expression that must have a type; a refusal names its purpose.
  NodeId typed_expression(std::string_view of_what, Type type);
  /// Expressions in brackets.
  std::vector<NodeId> index_list();

 private:
  NodeId expression(int minimum);
  /// "&&", "||" and "**", which are two symbols here.
  void refuse_doubled(const Token& symbol) const;
  bool at_comparison() const;
  NodeId prefix();
  NodeId primary();
  NodeId word(const Token& token);
  NodeId named(const Token& token);
  /// Suggests a known name in place of one without a meaning.
  std::string hint(const Token& token) const;
  NodeId call(const Token& name, Op op);
  std::vector<NodeId> list(std::string_view close);
  NodeId literal(const Token& token, bool negative);

  TokenStream& tokens_;
  Builder& builder_;
  const Meanings& meanings_;
  int depth_ = 0;
};

}  // namespace scoremod::ir
