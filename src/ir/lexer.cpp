#include "ir/lexer.hpp"

#include <algorithm>
#include <array>

#include "base/fail.hpp"
#include "ir/op_table.hpp"

namespace scoremod::ir {
namespace {

constexpr std::array<std::string_view, 14> kWords{"operand",    "table", "rank",  "let", "value", "keep", "d_score",
                                                  "accumulate", "true",  "false", "inf", "nan",   "f32",  "i32"};
// Longest first, so that "//" is not read as two "/".
constexpr std::array<std::string_view, 24> kSymbols{"//", "==", "!=", "<=", ">=", "+=", "+", "-", "*", "/", "%", "<",
                                                    ">",  "&",  "|",  "^",  "!",  "=",  "(", ")", "[", "]", ",", ":"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Length of the number at the start of text; sets *floating when it has a point or an exponent.
std::size_t number_length(std::string_view text, bool* floating) {
  std::size_t i = 0;
  const auto digits = [&] {
    while (i < text.size() && is_digit(text[i])) ++i;
  };
  digits();
  *floating = false;
  if (i < text.size() && text[i] == '.') {
    *floating = true;
    ++i;
    digits();
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    std::size_t exponent = i + 1;
    if (exponent < text.size() && (text[exponent] == '+' || text[exponent] == '-')) ++exponent;
    if (exponent < text.size() && is_digit(text[exponent])) {
      *floating = true;
      i = exponent;
      digits();
    }
  }
  return i;
}

std::size_t name_length(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && (is_letter(text[i]) || is_digit(text[i]))) ++i;
  return i;
}

/// A message shows at most this much of the source line on each side of the place.
constexpr std::size_t kShownBytes = 80;

/// True for the second and later bytes of a UTF-8 character, which take no column of their own.
bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// The text with control characters, which would end or garble a message, as '?'.
std::string visible(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) c = '?';
  }
  return out;
}

std::string printable(char c) {
  if (c >= ' ' && c <= '~') return std::string(1, c);
  constexpr const char* kHex = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return std::string("\\x") + kHex[byte >> 4] + kHex[byte & 15];
}

}  // namespace

Token Lexer::next() {
  skip_blanks();
  if (at_ < source_.size()) {
    last_ = read(source_.substr(at_));
  } else {
    const bool ended = last_.kind == TokenKind::kEndOfStatement || last_.kind == TokenKind::kEnd;
    last_ = take(ended ? TokenKind::kEnd : TokenKind::kEndOfStatement, 0);
  }
  return last_;
}

void Lexer::skip_blanks() {
  while (at_ < source_.size()) {
    const char c = source_[at_];
    if (c == '#') {
      at_ = std::min(source_.find('\n', at_), source_.size());
    } else if (c == ' ' || c == '\t' || c == '\r' || (c == '\n' && depth_ > 0)) {
      ++at_;
    } else {
      return;
    }
  }
}

Token Lexer::read(std::string_view rest) {
  const char c = rest.front();
  if (c == '\n' || c == ';') return take(TokenKind::kEndOfStatement, 1);
  if (is_digit(c) || (c == '.' && rest.size() > 1 && is_digit(rest[1]))) {
    bool floating = false;
    const std::size_t length = number_length(rest, &floating);
    return take(floating ? TokenKind::kFloat : TokenKind::kInteger, length);
  }
  if (is_letter(c)) return take(TokenKind::kName, name_length(rest));
  if (c == '%' && rest.size() > 1 && is_digit(rest[1]) && expects_value()) {
    return take(TokenKind::kLocal, 1 + name_length(rest.substr(1)));
  }
  return symbol(rest);
}

/// True where a value must come next, so that "%3" is a name and not "modulo 3".
bool Lexer::expects_value() const {
  if (last_.kind == TokenKind::kSymbol) return last_.text != ")" && last_.text != "]";
  return last_.kind == TokenKind::kEndOfStatement || (last_.kind == TokenKind::kName && last_.text == "let");
}

Token Lexer::symbol(std::string_view rest) {
  for (const std::string_view symbol : kSymbols) {
    if (!rest.starts_with(symbol)) continue;
    if (symbol == "(" || symbol == "[") ++depth_;
    if ((symbol == ")" || symbol == "]") && depth_ > 0) --depth_;
    return take(TokenKind::kSymbol, symbol.size());
  }
  fail_at(source_, at_, concat("expected a name, a number or an operator, found '", printable(rest.front()), "'"));
}

Token Lexer::take(TokenKind kind, std::size_t length) {
  const Token token{kind, source_.substr(at_, length), at_};
  at_ += length;
  return token;
}

void fail_at(std::string_view source, std::size_t offset, const std::string& message) {
  offset = std::min(offset, source.size());
  const std::string_view before = source.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  std::size_t end = std::min(source.find('\n', start), source.size());
  if (end > start && end > offset && source[end - 1] == '\r') --end;
  const std::string_view left = source.substr(start, offset - start);
  const std::string_view right = source.substr(offset, end - offset);
  const std::string_view shown_left = left.substr(left.size() - std::min(left.size(), kShownBytes));
  const std::string_view shown_right = right.substr(0, kShownBytes);
  const std::string cut_left = shown_left.size() < left.size() ? "..." : "";
  const std::string cut_right = shown_right.size() < right.size() ? "..." : "";
  std::string pad(cut_left.size(), ' ');
  for (const char c : shown_left) {
    if (!continues_character(c)) pad += c == '\t' ? '\t' : ' ';
  }
  const auto column = 1 + std::count_if(left.begin(), left.end(), [](char c) { return !continues_character(c); });
  fail_argument("line ", line, ", column ", column, ": ", message, "\n  ", cut_left, visible(shown_left),
                visible(shown_right), cut_right, "\n  ", pad, "^");
}

bool is_identifier(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && name_length(text) == text.size();
}

bool is_reserved(std::string_view name) {
  if (std::find(kWords.begin(), kWords.end(), name) != kWords.end()) return true;
  for (const OpInfo& row : op_table()) {
    if ((row.notation == Notation::kCall || row.notation == Notation::kKeyword) && name == row.name) return true;
  }
  return false;
}

}  // namespace scoremod::ir
