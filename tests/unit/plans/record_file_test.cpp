#include "plans/record_file.hpp"

#include <random>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "base/canonical_bytes.hpp"
#include "base/version.hpp"

namespace scoremod::plans {
namespace {

Record example() {
  Record record;
  record.kind = RecordKind::kVerification;
  record.engine = "cudnn 9.19.0";
  record.architecture = "sm_90 NVIDIA H200";
  record.label = "forward bf16";
  record.key = CanonicalWriter().text("key").integer(3).written();
  record.payload = CanonicalWriter().text("what was measured").written();
  return record;
}

void expect_equal(const Record& found, const Record& expected) {
  const auto& [kind, engine, architecture, label, key, payload] = expected;
  EXPECT_EQ(found.kind, kind);
  EXPECT_EQ(found.engine, engine);
  EXPECT_EQ(found.architecture, architecture);
  EXPECT_EQ(found.label, label);
  EXPECT_EQ(found.key, key);
  EXPECT_EQ(found.payload, payload);
}

/// A whole file with this header, this format and right checksums.
Bytes file_with(const Bytes& header, std::uint8_t format = 1) {
  const std::string magic = "SCOREMOD";
  Bytes file;
  for (const char letter : magic) file.push_back(static_cast<std::byte>(letter));
  const auto number = [&](std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) file.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
  };
  number(format, 4);
  number(header.size(), 8);
  number(0, 8);
  file.insert(file.end(), header.begin(), header.end());
  number(fnv1a(file), 8);
  number(fnv1a(file), 8);
  return file;
}

TEST(RecordFile, IsReadBack) {
  const Bytes file = encode(example());
  const RecordFile whole = decode(file);
  EXPECT_EQ(whole.damage, "");
  EXPECT_EQ(whole.library, version());
  expect_equal(whole.record, example());
  const RecordFile header = decode_header(file, file.size());
  EXPECT_EQ(header.damage, "");
  Record without_payload = example();
  without_payload.payload.clear();
  expect_equal(header.record, without_payload);
}

TEST(RecordFile, OfEveryKindIsReadBack) {
  for (const RecordKind kind : kRecordKinds) {
    Record record = example();
    record.kind = kind;
    const RecordFile file = decode(encode(record));
    EXPECT_EQ(file.damage, "") << to_string(record.kind);
    expect_equal(file.record, record);
  }
}

TEST(RecordFile, MayHaveNoPayload) {
  Record record = example();
  record.payload.clear();
  const RecordFile read = decode(encode(record));
  EXPECT_EQ(read.damage, "");
  expect_equal(read.record, record);
}

TEST(RecordFile, EveryFlippedBitIsSeen) {
  Bytes file = encode(example());
  for (std::size_t place = 0; place < file.size(); ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      file[place] ^= std::byte{1} << bit;
      const RecordFile read = decode(file);
      EXPECT_NE(read.damage, "") << "bit " << bit << " of byte " << place;
      EXPECT_TRUE(read.record.payload.empty() && read.record.key.empty());
      file[place] ^= std::byte{1} << bit;
    }
  }
  EXPECT_EQ(decode(file).damage, "");
}

TEST(RecordFile, EveryFlippedBitOfTheHeaderIsSeenInTheHeaderAlone) {
  Bytes file = encode(example());
  const std::size_t header_and_checksum = file.size() - example().payload.size() - 8;
  for (std::size_t place = 0; place < header_and_checksum; ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      file[place] ^= std::byte{1} << bit;
      EXPECT_NE(decode_header(file, file.size()).damage, "") << "bit " << bit << " of byte " << place;
      file[place] ^= std::byte{1} << bit;
    }
  }
}

TEST(RecordFile, EveryTruncationAndEveryExtensionIsSeen) {
  Bytes file = encode(example());
  for (std::size_t length = 0; length < file.size(); ++length) {
    const auto cut = std::span(file).first(length);
    EXPECT_NE(decode(cut).damage, "") << length;
    EXPECT_NE(decode_header(cut, cut.size()).damage, "") << length;
  }
  for (int i = 0; i < 40; ++i) {
    file.push_back(std::byte{0});
    EXPECT_NE(decode(file).damage, "") << file.size();
  }
}

TEST(RecordFile, RandomChangesAndRandomFilesAreSeen) {
  std::mt19937 random(2);
  const Bytes whole = encode(example());
  for (int round = 0; round < 5000; ++round) {
    Bytes file = whole;
    const std::size_t begin = random() % file.size();
    for (std::size_t i = begin; i < std::min(file.size(), begin + 1 + random() % 24); ++i) {
      file[i] = static_cast<std::byte>(random());
    }
    EXPECT_EQ(decode(file).damage.empty(), file == whole) << "round " << round;
  }
  for (int round = 0; round < 5000; ++round) {
    Bytes file(random() % 100);
    for (std::byte& byte : file) byte = static_cast<std::byte>(random());
    // The magic and the format are right, so that lengths are looked at.
    std::copy_n(whole.begin(), std::min<std::size_t>(file.size(), 12), file.begin());
    EXPECT_NE(decode(file).damage, "") << "round " << round;
  }
}

TEST(RecordFile, WithRightChecksumsIsStillHeldToItsHeader) {
  const auto header = [](const char* kind) {
    return CanonicalWriter().text(kind).text("0.1.0").text("e").text("a").text("l").bytes({}).written();
  };
  EXPECT_EQ(decode(file_with(header("plan"))).damage, "");
  EXPECT_NE(decode(file_with(header("recipe"))).damage, "");
  Bytes longer = header("plan");
  longer.push_back(std::byte{0});
  EXPECT_NE(decode(file_with(longer)).damage, "");
  const RecordFile of_later_format = decode(file_with(header("plan"), 2));
  EXPECT_NE(of_later_format.damage.find("format 2"), std::string::npos) << of_later_format.damage;
}

TEST(RecordFile, LengthsThatWrapAroundAreSeen) {
  // Their sum, taken modulo 2^64, is right, and so is the end of the header.
  Bytes file = encode(example());
  const auto set = [&](std::size_t place, std::uint64_t value) {
    for (std::size_t i = 0; i < 8; ++i) file[place + i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
  };
  set(12, std::uint64_t{0} - 36);
  set(20, file.size() - 8);
  EXPECT_NE(decode(file).damage, "");
}

TEST(RecordFile, SaysWhatIsWrong) {
  const Bytes file = encode(example());
  const auto says = [](std::span<const std::byte> bytes, const char* part) {
    return decode(bytes).damage.find(part) != std::string::npos;
  };
  EXPECT_TRUE(says(std::as_bytes(std::span("hello, world, this is a text")), "no file of scoremod"));
  EXPECT_TRUE(says(std::span(file).first(10), "cut off"));
  EXPECT_TRUE(says({}, "cut off"));
  EXPECT_TRUE(says(std::span(file).first(60), "has 60 bytes"));
}

TEST(RecordFile, OverItsLimitsIsNotWritten) {
  Record record = example();
  record.key.resize(kMaxHeaderBytes);
  EXPECT_THROW(encode(record), Error);
}

}  // namespace
}  // namespace scoremod::plans
