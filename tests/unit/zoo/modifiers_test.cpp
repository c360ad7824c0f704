#include <cmath>
#include <functional>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "support/program_outcome.hpp"

namespace scoremod {
namespace {

using test::OperandData;
using test::OperandValues;
using test::Position;

constexpr zoo::Sizes kSizes{2, 3, 9, 11};

/// Calls `visit` for every (b, h, q, kv) of the small problem, with a score that differs between them.
void for_each_element(const std::function<void(const Position&)>& visit) {
  std::mt19937 random(7);
  std::normal_distribution<double> scores(0, 3);
  for (int b = 0; b < kSizes.batch; ++b) {
    for (int h = 0; h < kSizes.heads; ++h) {
      for (int q = 0; q < kSizes.seq_q; ++q) {
        for (int kv = 0; kv < kSizes.seq_kv; ++kv) {
          visit({static_cast<float>(scores(random)), b, h, q, kv});
        }
      }
    }
  }
}

using ScoreFormula = std::function<double(const Position&)>;
using MaskFormula = std::function<bool(const Position&)>;

void expect_score(const ScoreMod& modifier, const OperandValues& operands, const ScoreFormula& formula) {
  const Program program = trace(modifier);
  EXPECT_EQ(program.keep(), kNoNode);
  for_each_element([&](const Position& at) {
    const double expected = formula(at);
    // Constants are f32 in the program; those of this file are exact in f32, so only the order of double operations
    // may differ.
    ASSERT_NEAR(outcome(program, at, operands).value, expected, 1e-14 * (1 + std::abs(expected)))
        << "b " << at.b << " h " << at.h << " q " << at.q << " kv " << at.kv << "\n"
        << program.to_string();
  });
}

void expect_mask(const MaskMod& modifier, const OperandValues& operands, const MaskFormula& formula) {
  const Program program = trace(modifier);
  int kept = 0;
  int removed = 0;
  for_each_element([&](const Position& at) {
    const auto found = outcome(program, at, operands);
    const bool expected = formula(at);
    ++(expected ? kept : removed);
    ASSERT_EQ(found.keep, expected) << "b " << at.b << " h " << at.h << " q " << at.q << " kv " << at.kv << "\n"
                                    << program.to_string();
    ASSERT_EQ(found.value, at.score);
  });
  // A formula that says the same everywhere could not tell a wrong mask.
  EXPECT_GT(kept, 0);
  EXPECT_GT(removed, 0);
}

OperandData numbered(std::vector<std::int64_t> shape) {
  OperandData data{shape, {}};
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  for (std::int64_t i = 0; i < count; ++i) data.values.push_back(0.25 * static_cast<double>(i) + 1);
  return data;
}

double at2(const OperandData& data, std::int64_t i, std::int64_t j) {
  return data.values[static_cast<std::size_t>(i * data.shape[1] + j)];
}

TEST(ZooScore, SoftCap) {
  expect_score(zoo::soft_cap(5), {}, [](const Position& e) { return 5 * std::tanh(e.score / 5); });
}

TEST(ZooScore, Alibi) {
  const OperandData slopes = numbered({3});
  const auto slope = [&](int h) { return slopes.values[static_cast<std::size_t>(h)]; };
  expect_score(zoo::alibi(), {{"slopes", slopes}},
               [&](const Position& e) { return e.score + slope(e.h) * (e.kv - e.q); });
  expect_score(zoo::alibi(true, "m"), {{"m", slopes}},
               [&](const Position& e) { return e.score - slope(e.h) * std::abs(e.q - e.kv); });
}

TEST(ZooScore, RelativeBias) {
  expect_score(zoo::relative_bias(), {}, [](const Position& e) { return e.score + (e.q - e.kv); });
  expect_score(zoo::relative_bias(-0.5f), {}, [](const Position& e) { return e.score - 0.5 * (e.q - e.kv); });
}

TEST(ZooScore, T5Bias) {
  for (const bool bidirectional : {true, false}) {
    for (const auto& [buckets, furthest] : {std::pair{8, 6}, std::pair{32, 128}, std::pair{4, 3}}) {
      const OperandData table = numbered({buckets, 3});
      expect_score(zoo::t5_bias(bidirectional, buckets, furthest), {{"t5_table", table}}, [&](const Position& e) {
        return e.score + at2(table, zoo::t5_bucket(e.kv - e.q, bidirectional, buckets, furthest), e.h);
      });
    }
  }
}

TEST(ZooScore, FullBias) {
  const OperandData full = numbered({2, 3, 9, 11});
  expect_score(zoo::full_bias(), {{"bias", full}}, [&](const Position& e) {
    return e.score + full.values[static_cast<std::size_t>(((e.b * 3 + e.h) * 9 + e.q) * 11 + e.kv)];
  });
  const OperandData by_head_and_key = numbered({3, 11});
  expect_score(zoo::full_bias({Axis::kHead, Axis::kKey}, "x"), {{"x", by_head_and_key}},
               [&](const Position& e) { return e.score + at2(by_head_and_key, e.h, e.kv); });
  EXPECT_EQ(trace(zoo::full_bias({Axis::kHead}, "x", true)),
            Program::parse("operand x: f32 [h]\nvalue = score + qk_scale * x"));
}

TEST(ZooScore, RelativeTable) {
  const OperandData table = numbered({3, 2 * 4 + 1});
  expect_score(zoo::relative_table(4), {{"relative_table", table}},
               [&](const Position& e) { return e.score + at2(table, e.h, std::clamp(e.q - e.kv, -4, 4) + 4); });
}

TEST(ZooScore, HeadTemperature) {
  const OperandData temperature = numbered({3});
  expect_score(zoo::head_temperature(), {{"temperature", temperature}},
               [&](const Position& e) { return e.score / temperature.values[static_cast<std::size_t>(e.h)]; });
}

TEST(ZooMask, Causal) {
  expect_mask(zoo::causal(), {}, [](const Position& e) { return e.kv <= e.q; });
  expect_mask(zoo::causal_bottom_right(9, 11), {}, [](const Position& e) { return e.kv <= e.q + 2; });
  expect_mask(zoo::causal_bottom_right(11, 9), {}, [](const Position& e) { return e.kv <= e.q - 2; });
}

TEST(ZooMask, Windows) {
  for (const int w : {0, 1, 4}) {
    expect_mask(zoo::sliding_window(w), {}, [=](const Position& e) { return std::abs(e.q - e.kv) <= w; });
    expect_mask(zoo::causal_sliding_window(w + 1), {},
                [=](const Position& e) { return e.kv <= e.q && e.kv > e.q - (w + 1); });
  }
  expect_mask(zoo::dilated_window(2, 3), {}, [](const Position& e) {
    const int d = std::abs(e.q - e.kv);
    return d == 0 || d == 3 || d == 6;
  });
}

TEST(ZooMask, PrefixLm) {
  expect_mask(zoo::prefix_lm(4), {}, [](const Position& e) { return e.kv < 4 || e.kv <= e.q; });
  expect_mask(zoo::prefix_lm_per_batch(), {{"prefix_lengths", {{2}, {3, 0}}}},
              [](const Position& e) { return e.kv < (e.b == 0 ? 3 : 0) || e.kv <= e.q; });
}

TEST(ZooMask, Documents) {
  const OperandData query{{2, 9}, {0, 0, 0, 1, 1, 1, 2, 2, 2, 5, 5, 5, 5, 6, 6, 6, 6, 6}};
  const OperandData key{{2, 11}, {0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5}};
  expect_mask(zoo::documents(), {{"query_documents", query}, {"key_documents", key}},
              [&](const Position& e) { return at2(query, e.b, e.q) == at2(key, e.b, e.kv); });
}

TEST(ZooMask, Padding) {
  expect_mask(zoo::padding(), {{"lengths", {{2}, {7, 0}}}},
              [](const Position& e) { return e.kv < (e.b == 0 ? 7 : 0); });
}

TEST(ZooMask, Neighborhood2d) {
  expect_mask(zoo::neighborhood_2d(4, 1, 2), {},
              [](const Position& e) { return std::abs(e.q % 4 - e.kv % 4) <= 1 && std::abs(e.q / 4 - e.kv / 4) <= 2; });
}

TEST(ZooMask, GlobalWindow) {
  expect_mask(zoo::global_window(2, 1), {},
              [](const Position& e) { return e.q < 2 || e.kv < 2 || std::abs(e.q - e.kv) <= 1; });
}

}  // namespace
}  // namespace scoremod
