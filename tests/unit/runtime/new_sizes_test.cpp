#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/error.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/open_attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "check/random_problem.hpp"
#include "problem/implied_operands.hpp"
#include "problem/open_sizes.hpp"
#include "support/mixed_options.hpp"
#include "support/other_sizes.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

constexpr int kProblems = 40;

CompileOptions on_cpu() {
  CompileOptions options;
  options.backend = "cpu";
  return options;
}

checking::CheckCase any_case(std::uint64_t seed) {
  checking::RandomProblemOptions options = test::mixed_options();
  options.max_scores = 2000;
  return checking::random_problem(seed, options);
}

/// The bytes of all outputs of a problem's calls on these inputs, and the workspaces that they take.
std::pair<std::vector<std::vector<std::byte>>, std::vector<std::size_t>> answers(const Attention& attention,
                                                                                 const AttentionProblem& problem,
                                                                                 const ProblemInputs& inputs) {
  ProblemBuffers buffers(problem, buffers_of(inputs));
  attention.forward(buffers.forward());
  if (problem.backward) attention.backward(buffers.backward());
  std::vector<std::vector<std::byte>> bytes;
  for (const OutputTensor& output : buffers.outputs()) bytes.push_back(output.bytes);
  return {bytes, {attention.forward_workspace_bytes(), attention.backward_workspace_bytes()}};
}

/// The message of an error that a compile throws; empty if it throws none.
template <class Compile>
std::string words_of(const Compile& compile) {
  try {
    compile();
    return {};
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
}

/// A problem that no structure is known of: what a fresh process has.
Attention fresh(const AttentionProblem& problem) {
  clear_attention_cache();
  return Attention::compile(problem, on_cpu());
}

TEST(NewSizes, AreAnsweredAsAFreshProblemIs) {
  int computed = 0;
  for (int i = 0; i < kProblems; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const AttentionProblem first = any_case(seed).problem;
    const auto [open_problem, first_sizes] = problem::with_all_sizes_open(first);
    const OpenAttention open = OpenAttention::compile(open_problem, on_cpu());
    open.at(first_sizes);
    for (int other = 0; other < 3; ++other) {
      const Sizes sizes = problem::with_all_sizes_open(test::at_other_sizes(first, random)).sizes;
      std::shared_ptr<const Attention> known;
      const std::string words = words_of([&] { known = open.at(sizes); });
      EXPECT_EQ(words, words_of([&, &open_problem = open_problem] { fresh(problem_at(open_problem, sizes)); }));
      if (known == nullptr) continue;
      const AttentionProblem problem = problem_at(open_problem, sizes);
      const Attention anew = fresh(problem);
      EXPECT_EQ(known->problem(), anew.problem());
      EXPECT_EQ(known->problem(), problem::with_implied_operands(problem));
      EXPECT_EQ(known->backend(), anew.backend());
      EXPECT_EQ(known->backward_backend(), anew.backward_backend());
      const ProblemInputs inputs = random_inputs(problem);
      EXPECT_EQ(answers(*known, problem, inputs), answers(anew, problem, inputs));
      ++computed;
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(computed, kProblems / 2);
}

/// Each fault at sizes of a structure that is known says what it says of a structure that is not.
TEST(NewSizes, AreRefusedInTheWordsOfAFreshProblem) {
  int refused = 0;
  for (int i = 0; i < kProblems; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto [open_problem, right] = problem::with_all_sizes_open(any_case(seed).problem);
    const OpenAttention open = OpenAttention::compile(open_problem, on_cpu());
    open.at(right);
    for (int fault = 0; fault < 12; ++fault) {
      Sizes sizes = right;
      const std::int64_t wrong[] = {0, -7, 3, 1 << 20, std::int64_t{1} << 31, std::int64_t{1} << 62};
      const std::int64_t size = wrong[random() % std::size(wrong)];
      std::int64_t* const numbers[] = {&sizes.batch,     &sizes.heads_q, &sizes.heads_kv,
                                       &sizes.seq_q,     &sizes.seq_kv,  &sizes.tokens_q,
                                       &sizes.tokens_kv, &sizes.blocks,  &sizes.blocks_per_sequence};
      std::optional<Strides>* const strides[] = {&sizes.q,   &sizes.k,  &sizes.v,  &sizes.o,
                                                 &sizes.d_o, &sizes.dq, &sizes.dk, &sizes.dv};
      switch (fault % 3) {
        case 0: *numbers[random() % std::size(numbers)] = size; break;
        case 1: *strides[random() % std::size(strides)] = Strides{size, 1, 2, 1}; break;
        default:
          if (sizes.operands.empty()) continue;
          OperandSizes& operand = sizes.operands[random() % sizes.operands.size()];
          (random() % 2 == 0 ? operand.shape : operand.strides).assign(1 + random() % 3, size);
      }
      // Another 2^20 queries would be computed for a while, and need no answer here.
      const auto check = [&, &open_problem = open_problem] { problem_at(open_problem, sizes); };
      clear_attention_cache();
      const std::string expected = words_of(check);
      if (expected.empty()) continue;
      Attention::compile(problem_at(open_problem, right), on_cpu());  // the structure is known again
      EXPECT_EQ(words_of([&] { open.at(sizes); }), expected);
      EXPECT_EQ(words_of([&, &open_problem = open_problem] {
                  Attention::compile(problem::with_sizes(open_problem, sizes), on_cpu());
                }),
                expected);
      ++refused;
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(refused, kProblems);
}

/// A problem whose mask, band and workspace follow the sizes.
AttentionProblem banded_problem() {
  return parse_problem(R"({"batch": null, "heads_q": 2, "seq_q": null, "seq_kv": null, "dim_qk": 8, "stats": true,
                           "backward": true, "program": ["value = score", "keep = kv_idx <= q_idx + 3"]})");
}

Sizes sizes_of(std::int64_t batch, std::int64_t seq_q, std::int64_t seq_kv) {
  Sizes sizes;
  sizes.batch = batch;
  sizes.seq_q = seq_q;
  sizes.seq_kv = seq_kv;
  return sizes;
}

/// The tests here tell sizes apart by what they compare: an attention of one key, query or batch less gives other
/// bytes.
TEST(NewSizes, ThatLeakAreSeen) {
  const OpenAttention open = OpenAttention::compile(banded_problem(), on_cpu());
  const AttentionProblem problem = problem_at(banded_problem(), sizes_of(2, 9, 9));
  const ProblemInputs inputs = random_inputs(problem);
  const auto right = answers(fresh(problem), problem, inputs);
  EXPECT_EQ(answers(*open.at(sizes_of(2, 9, 9)), problem, inputs), right);
  for (const Sizes& leaked : {sizes_of(1, 9, 9), sizes_of(2, 8, 9), sizes_of(2, 9, 8)})
    EXPECT_NE(answers(*open.at(leaked), problem, inputs), right);
}

TEST(NewSizes, AreAnsweredRightInManyThreads) {
  std::mt19937_64 random(test::test_seed());
  struct Case {
    Sizes sizes;
    AttentionProblem problem;
    ProblemInputs inputs;
    std::pair<std::vector<std::vector<std::byte>>, std::vector<std::size_t>> expected;
  };
  std::vector<Case> cases;
  for (int i = 0; i < 24; ++i) {
    const auto any = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(1, most)(random); };
    Case& made = cases.emplace_back();
    made.sizes = sizes_of(any(3), any(40), any(60));
    made.problem = problem_at(banded_problem(), made.sizes);
    made.inputs = random_inputs(made.problem);
    made.expected = answers(fresh(made.problem), made.problem, made.inputs);
  }
  // At these sizes the band is measured from the last query and key, which no other size may take over.
  fresh(problem_at(banded_problem(), sizes_of(1, 5, 8)));
  const OpenAttention open = OpenAttention::compile(banded_problem(), on_cpu());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const Case& one = cases[(i * (thread + 1) + thread) % cases.size()];
        if (thread == 3 && i % 4 == 0) clear_attention_cache();
        if (answers(*open.at(one.sizes), one.problem, one.inputs) != one.expected) ++wrong;
        if (answers(Attention::compile(one.problem, on_cpu()), one.problem, one.inputs) != one.expected) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

/// A scale of FP8 keys is a number or a table of heads. Which of the two is in the shape of its operand alone.
TEST(NewSizes, HaveAStructureOfTheirOwnWhereAScaleHasOtherRank) {
  const auto problem = [](const char* shape) {
    return parse_problem(
        std::string(R"({"batch": 1, "heads_q": 2, "seq_q": 3, "seq_kv": 5, "dim_qk": 16, "dtype": "bf16",
                                         "dtype_kv": "e4m3", "operands": [{"name": "descale_k", "shape": )") +
        shape + "}, {\"name\": \"descale_v\", \"shape\": " + shape + "}]}");
  };
  const Attention of_heads = fresh(problem("[2]"));
  const Attention of_all = Attention::compile(problem("[]"), on_cpu());
  EXPECT_EQ(of_all.problem(), fresh(problem("[]")).problem());
  EXPECT_NE(of_all.problem().program, of_heads.problem().program);
}

}  // namespace
}  // namespace scoremod
