// The states of tiles, by the kernel that finds them, on a host, against every element of the mask.

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/shared/tiled_variant.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/emulated_device.hpp"
#include "support/interpreter.hpp"
#include "support/random_mask.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;
using States = std::vector<std::uint8_t>;
constexpr std::uint8_t kEmpty = 0, kPartial = 1, kFull = 2;
/// Tiles of 16 by 32, the last ones cut off.
constexpr std::int64_t kQueries = 150, kKeys = 180;
constexpr IndexOffsets kOffsets{1, 0, 40, 7};

PortableShape small_shape() {
  PortableShape shape;
  shape.warps = shape.row_tiles = shape.blocks = 1;
  shape.queries = 16;
  shape.keys = 32;
  return shape;
}

AttentionProblem problem_of(Program program) {
  AttentionProblem p;
  p.batch = p.heads_q = p.heads_kv = 2;
  p.seq_q = kQueries;
  p.seq_kv = kKeys;
  p.dim_qk = p.dim_v = 16;
  p.dtype = DType::kBF16;
  p.index_offsets = true;
  p.program = std::move(program);
  for (const OperandDecl& decl : p.program.operands()) {
    p.operands.push_back(problem::default_spec(p, decl));
    if (decl.is_table()) p.operands.back().shape.assign(static_cast<std::size_t>(decl.rank()), 5);
  }
  return p;
}

/// The contents of operands: along queries and keys the same for some neighbours, as documents' ids are, or not.
class Contents {
 public:
  Contents(const AttentionProblem& p, std::mt19937_64& random, std::int64_t longest_run) : problem_(p) {
    for (std::uint32_t i = 0; i < p.operands.size(); ++i) {
      const OperandSpec& spec = p.operands[i];
      std::int64_t count = 1;
      for (const std::int64_t extent : spec.shape) count *= extent;
      const bool table = p.program.operands()[i].is_table();
      std::vector<std::int32_t> words(static_cast<std::size_t>(count));
      for (std::size_t at = 0; at < words.size();) {
        const auto run = table ? 1 : 1 + random() % static_cast<std::uint64_t>(longest_run);
        const std::int32_t word = word_of(spec.dtype, random);
        for (std::uint64_t end = std::min<std::uint64_t>(at + run, words.size()); at < end; ++at) words[at] = word;
      }
      words_.push_back(std::move(words));
      bytes_.emplace_back();
      for (const std::int32_t word : words_.back()) bytes_.back().push_back(static_cast<std::uint8_t>(word));
    }
  }

  /// Ids of documents along queries and keys: each row's begin with 0 and go up by one here and there.
  void pack(std::uint32_t queries, std::uint32_t keys, std::mt19937_64& random) {
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      std::int32_t id = 0;
      for (std::int64_t i = 0; i < std::max(kQueries, kKeys); ++i) {
        if (random() % 40 == 0) ++id;
        if (i < kQueries) words_[queries][static_cast<std::size_t>(b * kQueries + i)] = id;
        if (i < kKeys) words_[keys][static_cast<std::size_t>(b * kKeys + i)] = id;
      }
    }
  }

  std::vector<const void*> operands() const {
    std::vector<const void*> all;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const bool bytes = problem_.operands[i].dtype == DType::kBool;
      all.push_back(bytes ? static_cast<const void*>(bytes_[i].data()) : words_[i].data());
    }
    return all;
  }

  /// At local indices.
  ir::Scalar<float> read(std::uint32_t operand, std::span<const std::int32_t> table_indices,
                         const std::array<std::int64_t, kAxisCount>& at) const {
    const OperandDecl& decl = problem_.program.operands()[operand];
    const OperandSpec& spec = problem_.operands[operand];
    std::int64_t place = 0;
    std::size_t dimension = 0;
    const auto step = [&](std::int64_t index) {
      const std::int64_t extent = spec.shape[dimension++];
      place = place * extent + std::clamp<std::int64_t>(index, 0, extent - 1);
    };
    for (const std::int32_t index : table_indices) step(index);
    for (std::size_t axis = 0; axis < kAxisCount; ++axis)
      if (!decl.is_table() && decl.axes[axis]) step(at[axis]);
    const std::int32_t word = words_[operand][static_cast<std::size_t>(place)];
    ir::Scalar<float> value;
    if (spec.dtype == DType::kF32)
      value.f = std::bit_cast<float>(word);
    else if (spec.dtype == DType::kBool)
      value.b = word != 0;
    else
      value.i = word;
    return value;
  }

 private:
  static std::int32_t word_of(DType dtype, std::mt19937_64& random) {
    const auto number = static_cast<std::int32_t>(random() % 13) - 3;
    if (dtype == DType::kBool) return number & 1;
    if (dtype != DType::kF32) return number;
    const auto kind = random() % 16;
    const float value = kind == 0   ? std::numeric_limits<float>::quiet_NaN()
                        : kind == 1 ? std::numeric_limits<float>::infinity()
                                    : static_cast<float>(number) + (kind % 2 == 0 ? 0.0F : 0.5F);
    return std::bit_cast<std::int32_t>(value);
  }

  const AttentionProblem& problem_;
  std::vector<std::vector<std::int32_t>> words_;
  std::vector<std::vector<std::uint8_t>> bytes_;
};

/// A text of the kernel that leaves out its look at every element where a call asks for it, so that intervals alone
/// decide.
const Fault kOrIntervalsAlone{"state = state_by_elements(p, b, h, first_q, end_q, first_kv);",
                              "state = call.splits != 0 ? state : "
                              "state_by_elements(p, b, h, first_q, end_q, first_kv);"};

/// By the kernel, and by its intervals alone; empty where there is no kernel.
struct Found {
  States states, by_intervals;
};
Found found_of(const AttentionProblem& p, const Contents& contents, const Fault& fault = {}) {
  const compiler::CompiledProblem compiled = compiler::compile(p);
  const PortableShape shape = small_shape();
  const KernelCall kernels = test::attention_call(compiled, Direction::kForward, shape);
  std::vector<KernelLaunch> launches;
  for (const KernelLaunch& launch : kernels.launches())
    if (launch.kernel == std::string("attention_block_mask")) launches.push_back(launch);
  if (launches.empty()) return {};
  KernelSource source = attention_source(compiled, Direction::kForward, shape);
  source.modules = {block_mask_files(compiled, Direction::kForward)};
  const test::EmulatedLaunches run(test::emulated_text(source), launches, kOrIntervalsAlone, fault);
  const std::vector<const void*> operands = contents.operands();
  ForwardTensors tensors;
  tensors.operands = operands;
  const auto states_with = [&](bool intervals_alone) {
    States states(kernels.workspace_bytes(), 0xee);
    ArgumentBytes argument =
        kernels.arguments(tensors, {1.0F, kOffsets, nullptr, 0, 0}, reinterpret_cast<std::byte*>(states.data()));
    argument.call().splits = intervals_alone ? 1 : 0;
    run.run(argument, 1);
    return states;
  };
  return {states_with(false), states_with(true)};
}

/// By every element of a mask with the same operands, in whose place the kernel may have a part of it.
States expected_of(const AttentionProblem& p, const Program& mask, const Contents& contents, bool never_full = false) {
  const compiler::CompiledProblem compiled = compiler::compile(p);
  const MaskKnowledge knowledge = mask_knowledge(compiled, Direction::kForward);
  const PortableShape shape = small_shape();
  States states;
  for (std::int64_t b = 0; b < (knowledge.varies_with_batch ? p.batch : 1); ++b)
    for (std::int64_t h = 0; h < (knowledge.varies_with_head ? p.heads_q : 1); ++h)
      for (std::int64_t first_q = 0; first_q < p.seq_q; first_q += shape.queries)
        for (std::int64_t first_kv = 0; first_kv < p.seq_kv; first_kv += shape.keys) {
          bool some = false, all = !never_full && first_kv + shape.keys <= p.seq_kv;
          for (std::int64_t q = first_q; q < std::min(first_q + shape.queries, p.seq_q); ++q)
            for (std::int64_t kv = first_kv; kv < std::min(first_kv + shape.keys, p.seq_kv); ++kv) {
              test::Element<float> element;
              element.b = static_cast<std::int32_t>(b + kOffsets.batch);
              element.h = static_cast<std::int32_t>(h + kOffsets.head);
              element.q = static_cast<std::int32_t>(q + kOffsets.query);
              element.kv = static_cast<std::int32_t>(kv + kOffsets.key);
              element.read = [&](std::uint32_t operand, std::span<const std::int32_t> indices) {
                return contents.read(operand, indices, {b, h, q, kv});
              };
              const bool keep = test::interpret(mask, element)[mask.keep()].b;
              some = some || keep;
              all = all && keep;
            }
          states.push_back(!some ? kEmpty : all ? kFull : kPartial);
        }
  return states;
}

/// The kernel's block mask is exact, and its intervals' claims about a tile hold. Returns for how many tiles they claim
/// something.
std::ptrdiff_t expect_right(const Found& found, const States& expected) {
  EXPECT_EQ(found.states, expected);
  for (std::size_t i = 0; i < found.by_intervals.size(); ++i)
    if (found.by_intervals[i] != kPartial) {
      EXPECT_EQ(found.by_intervals[i], expected.at(i)) << "tile " << i;
    }
  return std::ssize(found.by_intervals) - std::ranges::count(found.by_intervals, kPartial);
}

TEST(BlockMasks, AreThoseOfRandomMasks) {
  constexpr int kMasks = 8;
  int compared = 0;
  std::ptrdiff_t told = 0;
  // Intervals prove nothing of one mask in four, and of eight of them once in 70,000 runs: then more are tried.
  for (std::uint64_t i = 0; compared < kMasks || (told == 0 && compared < 3 * kMasks); ++i) {
    std::mt19937_64 random(test::test_seed() + i);
    const AttentionProblem p = problem_of(test::random_mask(random, 1 + static_cast<int>(i % 4)));
    const Contents contents(p, random, i % 2 == 0 ? 60 : 3);
    const Found found = found_of(p, contents);
    if (found.states.empty()) continue;  // a band
    ++compared;
    SCOPED_TRACE(p.program.to_string());
    told += expect_right(found, expected_of(p, p.program, contents));
  }
  EXPECT_GT(told, 0);
}

struct Case {
  const char* name;
  const char* program;
};
void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

constexpr const char* kDocuments =
    "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y";
const Case kCases[] = {
    {"CausalDocuments",
     "operand x: i32 [q_idx]\noperand y: i32 [kv_idx]\nvalue = score\nkeep = x == y & kv_idx <= q_idx"},
    {"Lengths", "operand x: i32 [b]\nvalue = score\nkeep = kv_idx < x * 20 + 30"},
    {"LengthsByHead", "operand x: i32 [b, h]\nvalue = score\nkeep = kv_idx < x * 20 + 30 | q_idx >= x * 10 + 50"},
    {"FloatBounds", "operand x: f32 [h]\nvalue = score\nkeep = f32(kv_idx - q_idx) * 0.25 < x"},
    {"TableOfBlocks", "table x: i32 rank 2\nvalue = score\nkeep = x[q_idx // 64, kv_idx // 64] > 2"},
    {"TableByPosition", "table x: i32 rank 1\nvalue = score\nkeep = x[q_idx // 37] >= kv_idx // 50"},
    {"Flags", "operand x: bool [kv_idx]\noperand y: bool [b, q_idx]\nvalue = score\nkeep = x != y"},
};

class BlockMask : public ::testing::TestWithParam<Case> {};

TEST_P(BlockMask, AreRight) {
  std::mt19937_64 random(test::test_seed());
  const AttentionProblem p = problem_of(Program::parse(GetParam().program));
  std::ptrdiff_t told = 0;
  // Intervals prove nothing if a number is NaN, as one in 16 is: in FloatBounds that happens four times once in 65,000
  // runs.
  for (int i = 0; i < 4 || (told == 0 && i < 8); ++i) {
    const Contents contents(p, random, 70);
    told += expect_right(found_of(p, contents), expected_of(p, p.program, contents));
  }
  EXPECT_GT(told, 0);
}
INSTANTIATE_TEST_SUITE_P(Cases, BlockMask, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// With packed documents every tile of one class is proven by intervals.
TEST(BlockMasks, OfPackedDocumentsAreToldByIntervalsAlone) {
  std::mt19937_64 random(test::test_seed());
  const AttentionProblem p = problem_of(Program::parse(kDocuments));
  Contents contents(p, random, 70);
  contents.pack(0, 1, random);
  const States expected = expected_of(p, p.program, contents);
  const Found found = found_of(p, contents);
  EXPECT_EQ(found.states, expected);
  EXPECT_EQ(found.by_intervals, expected);
}

/// A part of a mask that reads no score empties tiles; none is full.
TEST(BlockMasks, AreThoseOfWhatReadsNoScore) {
  std::mt19937_64 random(test::test_seed());
  const AttentionProblem p = problem_of(Program::parse(std::string(kDocuments) + " & score > -0.3 & kv_idx % 9 != 4"));
  Contents contents(p, random, 70);
  contents.pack(0, 1, random);
  const Program part = Program::parse(std::string(kDocuments) + " & kv_idx % 9 != 4");
  const Found found = found_of(p, contents);
  expect_right(found, expected_of(p, part, contents, true));
  EXPECT_GT(std::ranges::count(found.states, kEmpty), 0);
  EXPECT_TRUE(found_of(problem_of(Program::parse("value = score\nkeep = score > -0.3")), contents).states.empty());
}

/// The knowledge of the mask of varlen sequences, which have none of their own or this one.
MaskKnowledge knowledge_of_varlen(const std::string& keep, bool index_offsets = false) {
  AttentionProblem p;
  p.batch = p.heads_q = p.heads_kv = 2;
  p.seq_q = kQueries;
  p.seq_kv = kKeys;
  p.tokens_q = p.tokens_kv = kKeys;
  p.q = p.k = p.v = p.o = {Layout::kTHD, {}};
  p.dim_qk = p.dim_v = 16;
  p.dtype = DType::kBF16;
  p.index_offsets = index_offsets;
  p.program = Program::parse("value = score" + (keep.empty() ? "" : "\nkeep = " + keep));
  return mask_knowledge(compiler::compile(problem::with_implied_operands(std::move(p))), Direction::kForward);
}

TEST(BlockMasks, OfVarlenSequencesAreNotFoundWhereOffsetsAloneTellThem) {
  for (const char* keep : {"", "kv_idx <= q_idx", "kv_idx <= q_idx & q_idx - kv_idx < 50"}) {
    EXPECT_EQ(knowledge_of_varlen(keep).kind, MaskKnowledge::Kind::kBand) << keep;
    EXPECT_FALSE(knowledge_of_varlen(keep).has_states()) << keep;
    // A program's index of a batch is then not the number of its sequence.
    EXPECT_TRUE(knowledge_of_varlen(keep, true).has_states()) << keep;
  }
  EXPECT_TRUE(knowledge_of_varlen("kv_idx % 3 != 1").has_states());
  EXPECT_TRUE(knowledge_of_varlen("kv_idx < 100 | b == 0").has_states());
}

/// Knowledge of the mask of a program with operands of batches.
MaskKnowledge knowledge_of(const std::string& keep) {
  AttentionProblem p;
  p.batch = p.heads_q = p.heads_kv = 2;
  p.seq_q = p.seq_kv = 100;
  p.dim_qk = p.dim_v = 16;
  p.dtype = DType::kBF16;
  p.program = Program::parse(
      "operand at: i32 [b]\noperand end: i32 [b]\noperand tree: bool [q_idx, kv_idx]\nvalue = score\nkeep = " + keep);
  for (const OperandDecl& decl : p.program.operands()) p.operands.push_back(problem::default_spec(p, decl));
  return mask_knowledge(compiler::compile(problem::with_implied_operands(std::move(p))), Direction::kForward);
}
bool grows(const std::string& keep) { return knowledge_of(keep).grows_with_query; }

TEST(BlockMasks, GrowFromQueryToQueryBelowDiagonals) {
  for (const char* keep : {"q_idx + at >= kv_idx", "kv_idx < q_idx + at & kv_idx < end", "kv_idx <= at + q_idx - 3",
                           "kv_idx < end", "kv_idx < end & kv_idx % 3 != 0 & h + q_idx - at > kv_idx"})
    EXPECT_TRUE(grows(keep)) << keep;
  for (const char* keep :
       {"kv_idx >= q_idx + at", "q_idx + at >= kv_idx & q_idx + at < kv_idx + 50", "kv_idx <= q_idx * at",
        "kv_idx <= at - q_idx", "kv_idx <= q_idx + q_idx", "kv_idx + at <= q_idx", "tree", "q_idx + at == kv_idx",
        "kv_idx <= q_idx + at | kv_idx >= q_idx + end", "kv_idx % 5 <= q_idx", "score > 0.0 & kv_idx <= q_idx + at"})
    EXPECT_FALSE(grows(keep)) << keep;
}
TEST(BlockMasks, KeepAPrefixOfTheKeysBelowBounds) {
  for (const char* keep : {"q_idx + at >= kv_idx", "kv_idx < q_idx + at & kv_idx < end", "kv_idx < end", "end > kv_idx",
                           "kv_idx <= at * end & h + q_idx - at > kv_idx"})
    EXPECT_TRUE(knowledge_of(keep).keeps_prefix) << keep;
  for (const char* keep : {"kv_idx < end & kv_idx % 3 != 0", "kv_idx >= at", "kv_idx < end & kv_idx >= at",
                           "kv_idx <= at - q_idx", "kv_idx < at + kv_idx % 7", "tree", "kv_idx + at < end"})
    EXPECT_FALSE(knowledge_of(keep).keeps_prefix) << keep;
}
/// The kernels that ask leave out what lies behind a varlen sequence's last query.
TEST(BlockMasks, OfVarlenSequencesGrowWithTheQueriesThatThereAre) {
  EXPECT_TRUE(knowledge_of_varlen("kv_idx % 3 != 1").grows_with_query);
  EXPECT_FALSE(knowledge_of_varlen("kv_idx % 3 != 1").keeps_prefix);
  EXPECT_FALSE(knowledge_of_varlen("q_idx % 3 != 1").grows_with_query);
}

/// The tests above would see it.
TEST(BlockMasks, FaultsAreSeen) {
  std::mt19937_64 random(test::test_seed());
  const AttentionProblem p = problem_of(Program::parse(kDocuments));
  const Contents contents(p, random, 3);
  const States expected = expected_of(p, p.program, contents);
  for (const Fault& fault :
       {Fault{"!some ? kEmptyTile", "!all ? kEmptyTile"},
        {"all ? kFullTile : kPartialTile", "all ? kFullTile : kFullTile"},
        {"!found.possible ? kEmptyTile", "!found.certain ? kEmptyTile"},
        {"x.lo == x.hi && y.lo == y.hi && x.lo == y.lo", "x.lo == y.lo"},
        {"found.known = !(found.least > found.greatest);", "found.known = true; found.greatest = found.least;"},
        {"kMaskVariesWithBatch = true", "kMaskVariesWithBatch = false"}})
    EXPECT_NE(found_of(p, contents, fault).states, expected) << fault.first;
}

}  // namespace
}  // namespace scoremod::backend::kernels
