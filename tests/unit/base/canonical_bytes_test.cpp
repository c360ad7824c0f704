#include "base/canonical_bytes.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace scoremod {
namespace {

Bytes bytes_of(std::string_view text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

TEST(CanonicalBytes, AreTheSameOnEveryMachine) {
  CanonicalWriter writer;
  writer.boolean(true).integer(-2).real(1.5f).text("ab").bytes(bytes_of("\x01")).list(258);
  const std::string expected(
      "b\x01"
      "i\xfe\xff\xff\xff\xff\xff\xff\xff"
      "r\x00\x00\xc0\x3f"
      "t\x02\x00\x00\x00\x00\x00\x00\x00"
      "ab"
      "y\x01\x00\x00\x00\x00\x00\x00\x00\x01"
      "l\x02\x01\x00\x00\x00\x00\x00\x00",
      2 + 9 + 5 + 11 + 10 + 9);
  EXPECT_EQ(writer.written(), bytes_of(expected));
}

TEST(CanonicalBytes, AreReadBack) {
  CanonicalWriter writer;
  const std::string odd("a\0\xff", 3);
  writer.boolean(false).boolean(true).integer(std::numeric_limits<std::int64_t>::min()).real(-0.0f).text(odd).text("");
  writer.bytes({}).list(1).text("end");
  CanonicalReader reader(writer.written());
  EXPECT_FALSE(reader.boolean());
  EXPECT_TRUE(reader.boolean());
  EXPECT_EQ(reader.integer(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(std::signbit(reader.real()));
  EXPECT_EQ(reader.text(), odd);
  EXPECT_EQ(reader.text(), "");
  EXPECT_TRUE(reader.bytes().empty());
  EXPECT_EQ(reader.list(), 1);
  EXPECT_FALSE(reader.at_end());
  EXPECT_EQ(reader.text(), "end");
  EXPECT_TRUE(reader.at_end());
}

TEST(CanonicalBytes, DifferWhereverValuesDiffer) {
  std::set<Bytes> seen;
  const auto is_new = [&](const CanonicalWriter& writer) { return seen.insert(writer.written()).second; };
  EXPECT_TRUE(is_new(CanonicalWriter().text("ab").text("c")));
  EXPECT_TRUE(is_new(CanonicalWriter().text("a").text("bc")));
  EXPECT_TRUE(is_new(CanonicalWriter().text("abc")));
  EXPECT_TRUE(is_new(CanonicalWriter().text("abc").text("")));
  EXPECT_TRUE(is_new(CanonicalWriter().bytes(bytes_of("abc"))));
  EXPECT_TRUE(is_new(CanonicalWriter().integer(0)));
  EXPECT_TRUE(is_new(CanonicalWriter().integer(1)));
  EXPECT_TRUE(is_new(CanonicalWriter().list(1)));
  EXPECT_TRUE(is_new(CanonicalWriter().boolean(true)));
  EXPECT_TRUE(is_new(CanonicalWriter().real(0.0f)));
  EXPECT_TRUE(is_new(CanonicalWriter().real(-0.0f)));
  EXPECT_TRUE(is_new(CanonicalWriter().real(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(is_new(CanonicalWriter()));
}

/// Reads a text, a list and a number, as a header does.
bool reads(std::span<const std::byte> bytes) {
  CanonicalReader reader(bytes);
  reader.text();
  reader.list();
  reader.bytes();
  reader.integer();
  return reader.at_end();
}

TEST(CanonicalBytes, CutOffOrPaddedAreNotRead) {
  Bytes bytes = CanonicalWriter().text("name").list(2).bytes(bytes_of("key")).integer(7).written();
  EXPECT_TRUE(reads(bytes));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(reads(std::span(bytes).first(length))) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(reads(bytes));
}

TEST(CanonicalBytes, OfWrongTypesLengthsAndValuesAreNotRead) {
  EXPECT_FALSE(CanonicalReader(CanonicalWriter().integer(1).written()).boolean());
  const Bytes neither = bytes_of("b\x02");
  CanonicalReader boolean(neither);
  EXPECT_FALSE(boolean.boolean());
  EXPECT_FALSE(boolean.ok());
  const Bytes huge = bytes_of("t\xff\xff\xff\xff\xff\xff\xff\x7f");
  CanonicalReader text(huge);
  EXPECT_EQ(text.text(), "");
  EXPECT_FALSE(text.ok());
  const Bytes written = CanonicalWriter().list(1000000).written();
  CanonicalReader list(written);
  EXPECT_EQ(list.list(), 0);
  EXPECT_FALSE(list.ok());
  EXPECT_EQ(list.integer(), 0) << "what was not as asked stays so";
}

TEST(CanonicalBytes, RandomBytesDoNoHarm) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes(random() % 64);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random() % 4 == 0 ? "tylib"[random() % 5] : random() % 3);
    reads(bytes);
  }
}

TEST(Bytes, Fnv1aIsThePublishedOne) {
  EXPECT_EQ(fnv1a({}), 0xcbf29ce484222325ull);
  EXPECT_EQ(fnv1a(bytes_of("a")), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fnv1a(bytes_of("foobar")), 0x85944171f73967e8ull);
}

}  // namespace
}  // namespace scoremod
