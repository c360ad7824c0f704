#include "backend/cpu/mask_tiles.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/operand_views.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod::backend::cpu {
namespace {

constexpr std::int64_t kSeq = 1024;

/// A mask over kSeq queries and keys, and the operands' data.
class Mask {
 public:
  /// `extent`: of each dimension of each operand; 0: the number of its entries.
  explicit Mask(const char* keep, std::vector<std::vector<std::int32_t>> data = {}, const IndexOffsets& offsets = {},
                std::int64_t extent = 0)
      : data_(std::move(data)),
        compiled_(compile(keep, data_, extent)),
        analyzer_(compiled_.forward.program),
        views_(with_data(operand_views(compiled_.problem), pointers())),
        tiles_(compiled_, analyzer_, views_, offsets) {
    tiles_.begin_head(0, 0);
  }

  std::span<const NeededKeys> needed(IndexSpan queries, IndexSpan keys) {
    const std::span<const NeededKeys> needed = tiles_.needed(queries, keys);
    // A unit of many queries skips a tile only where none of its parts needs any of it.
    EXPECT_TRUE(needed.empty() || tiles_.any(queries, keys));
    return needed;
  }

 private:
  static compiler::CompiledProblem compile(const char* keep, const std::vector<std::vector<std::int32_t>>& data,
                                           std::int64_t extent) {
    AttentionProblem problem;
    problem.seq_q = problem.seq_kv = kSeq;
    problem.program = Program::parse(keep);
    for (std::size_t i = 0; i < data.size(); ++i) {
      problem.operands.push_back({problem.program.operands()[i].name, DType::kI32, {}, {}});
      for (int k = 0; k < problem.program.operands()[i].rank(); ++k) {
        const auto entries = static_cast<std::int64_t>(data[i].size());
        problem.operands.back().shape.push_back(extent != 0 ? extent : entries);
      }
    }
    return compiler::compile(problem);
  }

  std::vector<const void*> pointers() const {
    std::vector<const void*> result;
    for (const auto& values : data_) result.push_back(values.data());
    return result;
  }

  std::vector<std::vector<std::int32_t>> data_;
  compiler::CompiledProblem compiled_;
  masks::TileMaskAnalyzer analyzer_;
  std::vector<OperandView> views_;
  MaskTiles tiles_;
};

/// One part, and no other.
void expect_keys(std::span<const NeededKeys> found, std::int64_t first, std::int64_t last, bool masked) {
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].keys.first, first);
  EXPECT_EQ(found[0].keys.last, last);
  EXPECT_EQ(found[0].masked, masked);
}

TEST(MaskTiles, NeedsEverythingWithoutAMask) {
  Mask mask("value = score");
  expect_keys(mask.needed({0, 12}, {512, 1024}), 512, 1024, false);
}

TEST(MaskTiles, CutsTheCausalTriangle) {
  Mask mask("value = score\nkeep = q_idx >= kv_idx");
  EXPECT_TRUE(mask.needed({0, 12}, {512, 1024}).empty());
  expect_keys(mask.needed({600, 612}, {512, 1024}), 512, 612, true);
  expect_keys(mask.needed({600, 612}, {0, 512}), 0, 512, false);
}

TEST(MaskTiles, CutsAWindowOnBothSides) {
  Mask mask("value = score\nkeep = abs(q_idx - kv_idx) <= 10");
  // Key 590 is the first that is needed; the panel that holds it begins at 576.
  expect_keys(mask.needed({600, 612}, {512, 1024}), 576, 622, true);
  EXPECT_TRUE(mask.needed({600, 612}, {0, 512}).empty());
}

TEST(MaskTiles, CountsOffsets) {
  IndexOffsets offsets;
  offsets.query = 100;
  offsets.key = 30;
  Mask mask("value = score\nkeep = q_idx >= kv_idx", {}, offsets);
  expect_keys(mask.needed({0, 12}, {0, 512}), 0, 82, true);
}

TEST(MaskTiles, SkipsPaddingByItsLengths) {
  Mask mask("operand length: i32 [b]\nvalue = score\nkeep = kv_idx < length", {{300}});
  EXPECT_TRUE(mask.needed({0, 12}, {512, 1024}).empty());
  expect_keys(mask.needed({0, 12}, {0, 256}), 0, 256, false);
  const auto mixed = mask.needed({0, 12}, {0, 512});
  ASSERT_EQ(mixed.size(), 2u);
  expect_keys(mixed.first(1), 0, 256, false);
  expect_keys(mixed.last(1), 256, 320, true);
}

TEST(MaskTiles, SkipsOtherDocuments) {
  std::vector<std::int32_t> ids(kSeq);
  for (std::int64_t i = 0; i < kSeq; ++i) ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i / 256);
  Mask mask("operand iq: i32 [q_idx]\noperand ik: i32 [kv_idx]\nvalue = score\nkeep = iq == ik", {ids, ids});
  EXPECT_TRUE(mask.needed({0, 12}, {512, 1024}).empty());
  expect_keys(mask.needed({264, 276}, {0, 512}), 256, 512, false);
  expect_keys(mask.needed({264, 276}, {256, 512}), 256, 512, false);
}

TEST(MaskTiles, DropsAMaskThatKeepsNothing) {
  Mask mask("value = score\nkeep = kv_idx < 0");
  EXPECT_TRUE(mask.needed({0, kSeq}, {0, kSeq}).empty());
}

/// Every element that the mask keeps must be computed, and where the mask is not evaluated it must keep everything.
void expect_sound(const char* text, const std::vector<std::vector<std::int32_t>>& data, auto keep) {
  Mask mask(text, data);
  for (std::int64_t q = 0; q < kSeq; q += 36) {
    const IndexSpan queries{q, std::min(q + 12, kSeq)};
    for (std::int64_t k = 0; k < kSeq; k += 256) {
      const auto needed = mask.needed(queries, {k, k + 256});
      for (std::int64_t i = queries.first; i < queries.last; ++i) {
        for (std::int64_t j = k; j < k + 256; ++j) {
          const auto part =
              std::ranges::find_if(needed, [j](const NeededKeys& n) { return n.keys.first <= j && j < n.keys.last; });
          const bool computed = part != needed.end();
          ASSERT_TRUE(computed || !keep(i, j)) << text << " loses " << i << ", " << j;
          ASSERT_TRUE(!computed || part->masked || keep(i, j)) << text << " keeps " << i << ", " << j;
        }
      }
    }
  }
}

TEST(MaskTiles, LosesNoElement) {
  std::vector<std::int32_t> ids(kSeq);
  for (std::int64_t i = 0; i < kSeq; ++i)
    ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((i * 7 / 300) % 5);
  const auto id = [&](std::int64_t i) { return ids[static_cast<std::size_t>(i)]; };
  expect_sound("value = score\nkeep = q_idx - kv_idx < 37", {}, [](auto q, auto k) { return q - k < 37; });
  expect_sound("value = score\nkeep = (q_idx - kv_idx) % 3 == 0", {}, [](auto q, auto k) { return (q - k) % 3 == 0; });
  expect_sound("value = score\nkeep = (kv_idx < 100) | (q_idx >= kv_idx)", {},
               [](auto q, auto k) { return k < 100 || q >= k; });
  expect_sound(
      "operand iq: i32 [q_idx]\noperand ik: i32 [kv_idx]\nvalue = score\nkeep = (iq == ik) & (q_idx >= kv_idx)",
      {ids, ids}, [&](auto q, auto k) { return id(q) == id(k) && q >= k; });
  expect_sound("table t: i32 rank 1\nvalue = score\nkeep = t[kv_idx] > t[q_idx]", {ids},
               [&](auto q, auto k) { return id(k) > id(q); });
}

/// Elements that are computed, and those of them whose mask is evaluated, of a block-sparse mask that is read from a
/// table.
std::pair<std::int64_t, std::int64_t> computed_of_blocks(std::int64_t block, const std::vector<std::int32_t>& table) {
  const std::string size = std::to_string(block);
  const std::string text =
      "table m: i32 rank 2\nvalue = score\nkeep = m[q_idx // " + size + ", kv_idx // " + size + "] != 0";
  Mask mask(text.c_str(), {table}, {}, kSeq / block);
  std::pair<std::int64_t, std::int64_t> counts;
  for (std::int64_t q = 0; q < kSeq; q += 12) {
    const IndexSpan queries{q, std::min(q + 12, kSeq)};
    for (std::int64_t k = 0; k < kSeq; k += 512) {
      for (const NeededKeys& part : mask.needed(queries, {k, k + 512})) {
        const std::int64_t elements = (queries.last - queries.first) * (part.keys.last - part.keys.first);
        counts.first += elements;
        if (part.masked) counts.second += elements;
      }
    }
  }
  return counts;
}

TEST(MaskTiles, LooksUpTheBlocksOfABlockSparseMask) {
  for (const std::int64_t block : {64, 128, 256}) {
    SCOPED_TRACE(block);
    const std::int64_t blocks = kSeq / block;
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks * blocks));
    std::int64_t kept = 0;
    for (std::size_t i = 0; i < table.size(); i += 7) {
      table[i] = 1;
      ++kept;
    }
    const auto [computed, masked] = computed_of_blocks(block, table);
    // Only rows on both sides of a boundary of blocks, at most 12 of each 64, see more than they need.
    EXPECT_LE(static_cast<double>(computed), 1.25 * static_cast<double>(kept * block * block));
    EXPECT_LE(masked, computed / 2);
  }
}

}  // namespace
}  // namespace scoremod::backend::cpu
