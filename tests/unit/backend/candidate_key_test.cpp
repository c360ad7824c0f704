#include "backend/candidate_key.hpp"

#include <stdexcept>

#include <gtest/gtest.h>

namespace scoremod::backend {
namespace {

const Bytes kSome{std::byte{1}, std::byte{2}};

TEST(CandidateKey, IsMadeOnceByWhoeverAsksFirst) {
  int made = 0;
  const CandidateKey key([&] {
    ++made;
    return kSome;
  });
  const CandidateKey copy = key;
  EXPECT_FALSE(key.empty());
  EXPECT_TRUE(key == copy);
  EXPECT_EQ(made, 0) << "neither question needs the bytes";
  EXPECT_EQ(copy.bytes(), kSome);
  EXPECT_EQ(key.bytes(), kSome);
  EXPECT_EQ(made, 1);
}

TEST(CandidateKey, ComparesBytesHoweverTheyWereMade) {
  const CandidateKey given(kSome), made([] { return kSome; }), other([] { return Bytes{std::byte{3}}; });
  EXPECT_TRUE(given == made);
  EXPECT_FALSE(given == other);
  EXPECT_FALSE(given == CandidateKey());
}

TEST(CandidateKey, IsEmptyWithoutBytes) {
  EXPECT_TRUE(CandidateKey().empty());
  EXPECT_TRUE(CandidateKey(Bytes{}).empty());
  EXPECT_TRUE(CandidateKey().bytes().empty());
}

TEST(CandidateKey, ThatFailedIsTriedAgain) {
  int tries = 0;
  const CandidateKey key([&]() -> Bytes {
    if (++tries == 1) throw std::runtime_error("no memory");
    return kSome;
  });
  EXPECT_THROW(key.bytes(), std::runtime_error);
  EXPECT_EQ(key.bytes(), kSome);
}

}  // namespace
}  // namespace scoremod::backend
