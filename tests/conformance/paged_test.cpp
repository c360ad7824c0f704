// Paged KV caches: the oracle against the dense formula, which has its own dense layout, the other backends by check().
// Planted faults must be found.

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/host_calls.hpp"
#include "conformance/operand_faults.hpp"
#include "conformance/ragged_cases.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using test::DenseModifier;

/// Three sequences of up to 7 keys in blocks of 3; a pool of 11.
AttentionProblem paged_problem(Layout layout) {
  AttentionProblem problem = test::small_problem();
  problem.batch = 3;
  problem.q.layout = problem.o.layout = Layout::kBHSD;
  problem.k.layout = problem.v.layout = layout;
  problem.lengths.kv = problem.stats = problem.max_logit = true;
  problem.paged = PagedKeys{3, 11, 4};
  return problem;
}

const std::vector<double> kCached{7, 0, 4};
/// Entries beyond the lengths are invalid pages.
const std::vector<double> kPagesK{9, 2, 5, -1, 77, -7, 0, 0, 10, 3, 99, -1},
    kPagesV{1, 8, 4, 50, 0, 0, 0, 0, 6, 7, -3, 11};

ProblemInputs paged_inputs(const AttentionProblem& problem) {
  ProblemInputs inputs = random_inputs(problem);
  test::set_operand(problem, inputs, "lengths_kv", kCached);
  test::set_operand(problem, inputs, "page_table_k", kPagesK);
  test::set_operand(problem, inputs, "page_table_v", kPagesV);
  return inputs;
}

/// Keys or values as the dense formula has them: the pool is [blocks, 3, heads, dim] or [blocks, heads, 3, dim].
std::vector<double> gathered(const AttentionProblem& p, const std::vector<std::byte>& pool,
                             const std::vector<double>& pages, Index dim) {
  std::vector<double> values;
  for (Index b = 0; b < p.batch; ++b) {
    for (Index h = 0; h < p.heads_kv; ++h) {
      for (Index j = 0; j < p.seq_kv; ++j) {
        const bool there = j < static_cast<Index>(kCached[static_cast<std::size_t>(b)]);
        const Index block = there ? static_cast<Index>(pages[static_cast<std::size_t>(b * 4 + j / 3)]) : 0;
        const Index row =
            p.k.layout == Layout::kBSHD ? (block * 3 + j % 3) * p.heads_kv + h : (block * p.heads_kv + h) * 3 + j % 3;
        for (Index d = 0; d < dim; ++d)
          values.push_back(there ? load_element<double>(pool.data(), p.dtype, row * dim + d) : 0);
      }
    }
  }
  return values;
}

TEST(Paged, KeysAndValuesAreReadThroughTheirTables) {
  for (const Layout layout : {Layout::kBSHD, Layout::kBHSD}) {
    AttentionProblem problem = paged_problem(layout);
    problem.program = Program::parse("value = score\nkeep = kv_idx <= q_idx + 3");
    const ProblemInputs inputs = paged_inputs(problem);
    DenseModifier modifier;
    modifier.keep = [](Index b, Index, Index q, Index kv) {
      return kv <= q + 3 && kv < static_cast<Index>(kCached[static_cast<std::size_t>(b)]);
    };
    const test::Place q = test::query_place(problem, problem.dim_qk), o = test::query_place(problem, problem.dim_v);
    AttentionProblem dense_problem = problem;
    dense_problem.paged.reset();
    const test::DenseResult expected =
        test::dense_attention(dense_problem,
                              {q.dense(inputs.q, problem.dtype), gathered(problem, inputs.k, kPagesK, problem.dim_qk),
                               gathered(problem, inputs.v, kPagesV, problem.dim_v), o.dense(inputs.d_o, problem.dtype)},
                              modifier);
    const ProblemBuffers found = test::run_calls(problem, inputs, "reference");
    test::expect_rows(found, "o", o, expected.o);
    test::expect_rows(found, "lse", test::query_place(problem, 1), expected.lse);
    test::expect_rows(found, "max_logit", test::query_place(problem, 1), expected.max_logit);
    test::expect_backends_conform(problem, inputs);
  }
}

/// As a server has them: queries of several requests one after the other, keys in blocks.
TEST(Paged, StandsBesideRaggedQueries) {
  AttentionProblem problem = paged_problem(Layout::kBSHD);
  problem.tokens_q = 9;
  problem.q.layout = problem.o.layout = Layout::kTHD;
  problem.program = Program::parse("value = score * 0.5");
  ProblemInputs inputs = paged_inputs(problem);
  test::set_operand(problem, inputs, "offsets_q", test::kOffsetsQ);
  test::expect_backends_conform(problem, inputs);
}

TEST(Paged, TablesThatTheHostCanReadNameValidPages) {
  const AttentionProblem problem = paged_problem(Layout::kBSHD);
  const Attention attention = Attention::compile(problem);
  for (const auto& [block, text] : {std::pair{11.0, "11"}, std::pair{-1.0, "-1"}}) {
    ProblemInputs inputs = paged_inputs(problem);
    std::vector<double> pages = kPagesV;
    pages[9] = block;
    test::set_operand(problem, inputs, "page_table_v", pages);
    ProblemBuffers buffers(problem, buffers_of(inputs));
    test::expect_refusal(std::string("'page_table_v': expected blocks from 0 to 10, found ") + text +
                             " at [2, 1], which holds keys below the sequence's length of 4",
                         [&] { attention.forward(buffers.forward()); });
  }
}

TEST(PagedNegativeControl, SwappedPagesAndLengthsThatAreOffByOneAreFound) {
  const AttentionProblem problem = paged_problem(Layout::kBSHD);
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = paged_inputs(problem);
  const checking::Subject subject = test::reference_subject(right);
  EXPECT_TRUE(test::passes(right, subject, inputs));
  std::vector<std::int32_t> pages(kPagesK.begin(), kPagesK.end());
  std::swap(pages[0], pages[1]);
  EXPECT_FALSE(test::passes(right, test::with_operand(subject, "page_table_k", pages), inputs));
  const std::vector<std::int32_t> shorter{6, 0, 4};
  EXPECT_FALSE(test::passes(right, test::with_operand(subject, "lengths_kv", shorter), inputs));
}

}  // namespace
}  // namespace scoremod
