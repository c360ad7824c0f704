#include "npy_header.hpp"

#include <charconv>

#include "fail.hpp"

namespace scoremod::input {
namespace {

/// NumPy has arrays of at most 64 dimensions.
constexpr std::size_t kMaxRank = 64;

/// A reader of the few forms of Python literal that a header has.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  NpyHeader run() {
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !descr_) {
        descr_ = string();
      } else if (key == "fortran_order" && !fortran_order_) {
        fortran_order_ = boolean();
      } else if (key == "shape" && !shape_) {
        shape_ = tuple();
      } else {
        refuse();
      }
      if (!accept(',') && !at('}')) refuse();
    }
    skip_blanks();
    if (at_ != text_.size() || !descr_ || !fortran_order_ || !shape_) refuse();
    return {*descr_, *fortran_order_, *shape_};
  }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorCode::kInvalidArgument,
         "expected a .npy header such as {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, found something "
         "else; "
         "write the file with numpy.save");
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }

  bool at(char c) {
    skip_blanks();
    return at_ < text_.size() && text_[at_] == c;
  }

  bool accept(char c) {
    if (!at(c)) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) refuse();
  }

  std::string string() {
    const char quote = at('"') ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) refuse();
    const std::string value(text_.substr(at_, end - at_));
    at_ = end + 1;
    if (value.find('\\') != std::string::npos) refuse();
    return value;
  }

  bool word(std::string_view expected) {
    skip_blanks();
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  bool boolean() {
    if (word("True")) return true;
    if (word("False")) return false;
    refuse();
  }

  std::int64_t integer() {
    skip_blanks();
    std::int64_t value = -1;
    const auto result = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (result.ec != std::errc() || value < 0) refuse();
    at_ = static_cast<std::size_t>(result.ptr - text_.data());
    return value;
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      if (values.size() == kMaxRank) refuse();
      values.push_back(integer());
      if (!accept(',') && (!at(')') || values.size() == 1)) refuse();  // (3) is no tuple, (3,) is
    }
    return values;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::optional<std::string> descr_;
  std::optional<bool> fortran_order_;
  std::optional<std::vector<std::int64_t>> shape_;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text) { return Reader(text).run(); }

std::string npy_shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (const std::int64_t size : shape) text += std::to_string(size) + (shape.size() == 1 ? "," : ", ");
  if (shape.size() > 1) text.resize(text.size() - 2);
  return text + ")";
}

std::string format_npy_header(const NpyHeader& header) {
  constexpr std::size_t kAlignment = 64;  // NumPy's, so that the elements can be mapped
  constexpr std::size_t kPrefixBytes = 10;
  std::string text = "{'descr': '" + header.descr + "', 'fortran_order': " + (header.fortran_order ? "True" : "False") +
                     ", 'shape': " + npy_shape_text(header.shape) + ", }";
  const std::size_t unpadded = kPrefixBytes + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace scoremod::input
