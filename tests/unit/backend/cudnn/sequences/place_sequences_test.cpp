// The kernel in front of cuDNN's plans of varlen sequences and paged KV caches, run by the host's threads of no warp:
// its text is C++ for both.

#include "backend/cudnn/sequences/place_sequences.cuh"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device/library.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/cudnn/lowering/page_mask.hpp"
#include "backend/cudnn/sequences/sequence_placer.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr std::int64_t kTokensQ = 30, kTokensKv = 20, kHeads = 4, kHeadsKv = 2, kDim = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint16_t kUnwritten = 0xffff;

AttentionProblem varlen_problem() {
  AttentionProblem problem;
  problem.batch = 3;
  problem.heads_q = kHeads;
  problem.heads_kv = kHeadsKv;
  problem.seq_q = problem.seq_kv = 10;
  problem.dim_qk = problem.dim_v = kDim;
  problem.tokens_q = kTokensQ;
  problem.tokens_kv = kTokensKv;
  problem.q = problem.k = problem.v = problem.o = {Layout::kTHD, {}};
  problem.dtype = DType::kBF16;
  problem.backward = true;
  problem.program = Program::parse("value = score");
  return compiler::compile(problem).problem;
}

AttentionProblem paged_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = kHeads;
  problem.heads_kv = kHeadsKv;
  problem.seq_q = 1;
  problem.seq_kv = 40;
  problem.dtype = DType::kBF16;
  problem.lengths.kv = true;
  problem.paged = PagedKeys{16, 7, 4};
  problem.program = Program::parse("value = score");
  return with_page_mask(compiler::compile(problem)).problem;
}

/// A call's memory: operands by their names, and room for the results.
struct Call {
  explicit Call(const AttentionProblem& of, Direction direction)
      : problem(of), layout(of, direction), workspace(layout.workspace_bytes()) {
    operands.resize(problem.program.operands().size());
  }

  void bind(const char* name, const std::vector<std::int32_t>& numbers) {
    operands[*problem::operand_number(problem.program, name)] = numbers.data();
  }
  /// By so many threads, each at its end before the next begins.
  void run(int threads) {
    pointers.operands = operands;
    const PlacesArgument argument = layout.argument(pointers, workspace.data());
    for (int thread = 0; thread < threads; ++thread) place_all(argument, thread, threads);
  }
  template <class Number>
  std::vector<Number> result(std::int64_t uid, std::size_t count) const {
    std::vector<Number> numbers(count);
    std::memcpy(numbers.data(), workspace.data() + layout.place_of(uid).value(), count * sizeof(Number));
    return numbers;
  }

  AttentionProblem problem;
  PlacesLayout layout;
  std::vector<std::byte> workspace;
  std::vector<const void*> operands;
  CallPointers pointers;
};

using Places = std::vector<std::int64_t>;
using Lengths = std::vector<std::int32_t>;

TEST(PlaceSequences, GivesEachVarlenTensorItsElements) {
  const Lengths queries{2, 9, 9, 28}, keys{0, 5, 12, 20};
  Call call(varlen_problem(), Direction::kBackward);
  call.bind("offsets_q", queries);
  call.bind("offsets_kv", keys);
  call.run(64);
  constexpr std::int64_t kRow = kHeads * kDim, kRowKv = kHeadsKv * kDim;
  for (const Uid uid : {kUidQ, kUidO, kUidDO, kUidDQ})
    EXPECT_EQ(call.result<std::int64_t>(kUidPlaces + uid, 4), (Places{2 * kRow, 9 * kRow, 9 * kRow, 28 * kRow})) << uid;
  for (const Uid uid : {kUidK, kUidV, kUidDK, kUidDV})
    EXPECT_EQ(call.result<std::int64_t>(kUidPlaces + uid, 4), (Places{0, 5 * kRowKv, 12 * kRowKv, 20 * kRowKv})) << uid;
  EXPECT_EQ(call.result<std::int64_t>(kUidPlaces + kUidStats, 4),
            (Places{2 * kHeads, 9 * kHeads, 9 * kHeads, 28 * kHeads}));
  // The third sequence has more tokens than the longest.
  EXPECT_EQ(call.result<std::int32_t>(kUidLengthsQ, 3), (Lengths{7, 0, 10}));
  EXPECT_EQ(call.result<std::int32_t>(kUidLengthsKv, 3), (Lengths{5, 7, 8}));
}

TEST(PlaceSequences, KeepsOffsetsThatNobodyValidatedWithinTheTensors) {
  const Lengths queries{-5, 1000, 3, 25}, keys{0, 5, 12, 20};
  Call call(varlen_problem(), Direction::kForward);
  call.bind("offsets_q", queries);
  call.bind("offsets_kv", keys);
  call.run(32);
  const Places places = call.result<std::int64_t>(kUidPlaces + kUidQ, 4);
  const Lengths lengths = call.result<std::int32_t>(kUidLengthsQ, 3);
  for (std::size_t b = 0; b < 3; ++b) {
    EXPECT_GE(places[b], 0);
    EXPECT_GE(lengths[b], 0);
    EXPECT_LE(places[b] / (kHeads * kDim) + lengths[b], kTokensQ) << b;
  }
}

TEST(PlaceSequences, FillsRowsOfTokensOfNoSequenceAndNoOthers) {
  const Lengths queries{2, 9, 9, 28}, keys{3, 5, 12, 18};
  Call call(varlen_problem(), Direction::kForward);
  call.bind("offsets_q", queries);
  call.bind("offsets_kv", keys);
  std::vector<std::uint16_t> o(kTokensQ * kHeads * kDim, kUnwritten);
  std::vector<float> lse(kTokensQ * kHeads, 1);
  call.pointers.attention[kUidO] = o.data();
  call.pointers.attention[kUidStats] = lse.data();
  call.run(96);
  for (std::int64_t token = 0; token < kTokensQ; ++token) {
    // The third sequence is longer than seq_q by nine tokens.
    const bool outside = token < 2 || token >= 19;
    for (std::int64_t i = 0; i < kHeads * kDim; ++i)
      EXPECT_EQ(o[static_cast<std::size_t>(token * kHeads * kDim + i)], outside ? 0 : kUnwritten) << token;
    for (std::int64_t h = 0; h < kHeads; ++h)
      EXPECT_EQ(lse[static_cast<std::size_t>(token * kHeads + h)], outside ? -kInfinity : 1) << token;
  }
}

TEST(PlaceSequences, FillsGradientsOfTokensOfNoSequence) {
  const Lengths queries{2, 9, 9, 28}, keys{3, 5, 12, 18};
  Call call(varlen_problem(), Direction::kBackward);
  call.bind("offsets_q", queries);
  call.bind("offsets_kv", keys);
  std::vector<std::uint16_t> dq(kTokensQ * kHeads * kDim, kUnwritten);
  std::vector<std::uint16_t> dk(kTokensKv * kHeadsKv * kDim, kUnwritten), dv = dk;
  call.pointers.attention[kUidDQ] = dq.data();
  call.pointers.attention[kUidDK] = dk.data();
  call.pointers.attention[kUidDV] = dv.data();
  call.run(32);
  for (std::int64_t token = 0; token < kTokensKv; ++token) {
    const bool outside = token < 3 || token >= 18;
    const auto first = static_cast<std::size_t>(token * kHeadsKv * kDim);
    EXPECT_EQ(dk[first], outside ? 0 : kUnwritten) << token;
    EXPECT_EQ(dv[first + kHeadsKv * kDim - 1], outside ? 0 : kUnwritten) << token;
  }
  EXPECT_EQ(dq[kHeads * kDim], 0);
  EXPECT_EQ(dq[2 * kHeads * kDim], kUnwritten);
}

TEST(PlaceSequences, CopiesPageTablesWithPagesOfThePoolAlone) {
  const Lengths keys{0, 6, -1, 5, 7, 3, 1000, 5}, values{5, 4, 3, 6, 2, 1, 0, 6}, lengths{17, 90};
  Call call(paged_problem(), Direction::kForward);
  call.bind("page_table_k", keys);
  call.bind("page_table_v", values);
  call.bind("lengths_kv", lengths);
  call.run(32);
  EXPECT_EQ(call.result<std::int32_t>(kUidPagesK, 6), (Lengths{0, 6, 0, 0, 3, 0}));
  EXPECT_EQ(call.result<std::int32_t>(kUidPagesV, 6), (Lengths{5, 4, 3, 2, 1, 0})) << "as many as 40 keys have";
  EXPECT_EQ(call.result<std::int32_t>(kUidLengthsQ, 2), (Lengths{1, 1}));
  EXPECT_EQ(call.result<std::int32_t>(kUidLengthsKv, 2), (Lengths{17, 40}));
  EXPECT_FALSE(call.layout.place_of(kUidPlaces + kUidK));
  Lengths there(80, 1);
  std::fill_n(there.begin() + 17, 39, 0);  // behind the first batch's length, and the second one's first page
  std::fill_n(there.begin() + 72, 8, 0);
  EXPECT_EQ(call.result<std::int32_t>(kUidNamesPages, 80), there);
}

TEST(PlaceSequences, MasksTheOnlyKeyOfASequenceWithoutKeys) {
  const Lengths pages{0, 1, 2, 3, 4, 5, 6, 0}, lengths{0, 40};
  Call call(paged_problem(), Direction::kForward);
  call.bind("page_table_k", pages);
  call.bind("page_table_v", pages);
  call.bind("lengths_kv", lengths);
  call.run(32);
  EXPECT_EQ(call.result<std::int32_t>(kUidLengthsKv, 2), (Lengths{1, 40}));
  Lengths there(80, 1);
  std::fill_n(there.begin(), 40, 0);
  EXPECT_EQ(call.result<std::int32_t>(kUidNamesPages, 80), there);
}

TEST(PlaceSequences, Compiles) {
  if (cuda::nvrtc_library().handle == nullptr) GTEST_SKIP() << cuda::nvrtc_library().reason;
  for (const int capability : {80, 90, 100})
    EXPECT_FALSE(cuda::compile_kernels(place_sequences_source(), capability).empty());
}

}  // namespace
}  // namespace scoremod::backend::cudnn
