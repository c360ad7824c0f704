#include "scoremod/explain.hpp"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"

namespace scoremod {
namespace {

AttentionProblem problem_with(const char* program) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = 16;
  problem.seq_kv = 24;
  problem.dim_qk = 8;
  problem.dim_v = 4;
  problem.program = Program::parse(program);
  problem.backward = true;
  return problem;
}

/// Pairs by counting, for masks that are a function of q and kv alone.
template <class Keep>
double counted_pairs(const AttentionProblem& problem, Keep keep) {
  std::int64_t count = 0;
  for (std::int64_t q = 0; q < problem.seq_q; ++q) {
    for (std::int64_t kv = 0; kv < problem.seq_kv; ++kv) count += keep(q, kv) ? 1 : 0;
  }
  return static_cast<double>(problem.batch * problem.heads_q * count);
}

TEST(Explain, CountsWhatTheMaskKeeps) {
  const auto causal = explain(problem_with("value = score\nkeep = q_idx >= kv_idx"));
  EXPECT_TRUE(causal.work.exact);
  EXPECT_EQ(causal.work.pairs, counted_pairs(causal.problem, [](auto q, auto kv) { return q >= kv; }));
  EXPECT_EQ(causal.work.dense_pairs, 2.0 * 4 * 16 * 24);
  EXPECT_EQ(causal.work.forward_flops, causal.work.pairs * (2 * 8 + 2 * 4));
  EXPECT_EQ(causal.work.backward_flops, causal.work.pairs * (6 * 8 + 4 * 4));

  const auto prefix = explain(problem_with("value = score\nkeep = kv_idx < 5 | kv_idx <= q_idx"));
  EXPECT_EQ(prefix.mask.kind, "prefix");
  EXPECT_TRUE(prefix.work.exact);
  EXPECT_EQ(prefix.work.pairs, counted_pairs(prefix.problem, [](auto q, auto kv) { return kv < 5 || kv <= q; }));

  const auto full = explain(problem_with("value = tanh(score)"));
  EXPECT_EQ(full.work.pairs, full.work.dense_pairs);
  EXPECT_TRUE(full.work.exact);
}

TEST(Explain, DrawsTheMask) {
  const auto causal = explain(problem_with("value = score\nkeep = q_idx >= kv_idx"));
  EXPECT_EQ(causal.mask.map.tile_q, 1);
  ASSERT_EQ(causal.mask.map.rows.size(), 16u);
  EXPECT_EQ(causal.mask.map.rows[0], "#.......................");
  EXPECT_EQ(causal.mask.map.rows[15], "################........");
  EXPECT_NE(to_text(causal).find("\n    ##......"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(causal))["mask"]["map"]["rows"][1], "##......................");

  AttentionProblem large = problem_with("operand n: i32 [b]\nvalue = score\nkeep = kv_idx < n & kv_idx <= q_idx");
  large.operands = {{"n", DType::kI32, {2}, {}}};
  large.seq_q = 33;  // the last tile has one query
  large.seq_kv = 64;
  const MaskExplanation::Map map = explain(large).mask.map;
  EXPECT_EQ(map.tile_q, 2);
  ASSERT_EQ(map.rows.size(), 17u);
  EXPECT_EQ(map.rows[0], "+...............................");
  EXPECT_EQ(map.rows[16], "+++++++++++++++++...............");

  EXPECT_TRUE(explain(problem_with("value = tanh(score)")).mask.map.rows.empty());
}

TEST(Explain, SaysWhenTheCountIsAnUpperBound) {
  AttentionProblem problem = problem_with("operand n: i32 [b]\nvalue = score\nkeep = kv_idx < n & kv_idx <= q_idx");
  problem.operands = {{"n", DType::kI32, {2}, {}}};
  const Explanation explanation = explain(problem);
  EXPECT_EQ(explanation.mask.kind, "padding");
  EXPECT_FALSE(explanation.work.exact);
  EXPECT_EQ(explanation.work.pairs, counted_pairs(problem, [](auto q, auto kv) { return kv <= q; }));
  ASSERT_EQ(explanation.mask.terms.size(), 1u);
  EXPECT_EQ(explanation.mask.terms[0].kind, "padding");
  EXPECT_NE(explanation.mask.terms[0].program.find("keep = "), std::string::npos);
  EXPECT_NE(to_text(explanation).find("at most"), std::string::npos);
}

TEST(Explain, HasTheProgramBeforeAndAfterAndItsDerivative) {
  const AttentionProblem problem = problem_with("value = select(q_idx >= kv_idx, tanh(score), -inf)");
  const Explanation explanation = explain(problem);
  EXPECT_EQ(Program::parse(explanation.program), problem.program);
  const Program compiled = Program::parse(explanation.compiled);
  EXPECT_NE(compiled.keep(), kNoNode);
  EXPECT_NE(explanation.derivative.find("d_score = "), std::string::npos);
  EXPECT_EQ(explanation.mask.kind, "band");
  ASSERT_TRUE(explanation.mask.band.has_value());
  EXPECT_EQ(explanation.mask.band->right, 0);
  EXPECT_EQ(explanation.mask.band->left, std::nullopt);
  ASSERT_FALSE(explanation.steps.empty());
  EXPECT_TRUE(std::ranges::all_of(explanation.steps, [](const CompilerStep& step) { return step.program.empty(); }));
}

TEST(Explain, KeepsTheProgramOfEachStepOnRequest) {
  ExplainOptions options;
  options.step_programs = true;
  const Explanation explanation = explain(problem_with("value = select(q_idx >= kv_idx, score, -inf)"), options);
  for (const CompilerStep& step : explanation.steps) EXPECT_NO_THROW(Program::parse(step.program)) << step.name;
}

TEST(Explain, WithoutBackwardThereIsNoDerivative) {
  AttentionProblem problem = problem_with("value = tanh(score)");
  problem.backward = false;
  const Explanation explanation = explain(problem);
  EXPECT_EQ(explanation.derivative, "");
  EXPECT_EQ(explanation.work.backward_flops, 0);
  for (const BackendExplanation& backend : explanation.backends)
    EXPECT_EQ(backend.backward_workspace_bytes, std::nullopt);
}

TEST(Explain, ListsTensorsWithTheirBytes) {
  AttentionProblem problem = problem_with("operand s: f32 [h]\ntable t: f32 rank 2\nvalue = score * s + t[h, q_idx]");
  problem.q.layout = Layout::kBHSD;
  problem.operands = {{"t", DType::kF16, {4, 3}, {}}, {"s", DType::kF32, {4}, {}}};
  const Explanation explanation = explain(problem);
  ASSERT_EQ(explanation.tensors.size(), 7u);
  EXPECT_EQ(explanation.tensors[0].dimensions, "BHSD");
  EXPECT_EQ(explanation.tensors[0].shape, (std::vector<std::int64_t>{2, 4, 16, 8}));
  EXPECT_EQ(explanation.tensors[1].shape, (std::vector<std::int64_t>{2, 24, 4, 8}));
  EXPECT_EQ(explanation.tensors[3].bytes, 4u * 2 * 16 * 4 * 4);
  EXPECT_EQ(explanation.tensors[4].bytes, 4u * 2 * 4 * 16);
  EXPECT_EQ(explanation.tensors[5].name, "s");
  EXPECT_EQ(explanation.tensors[5].dimensions, "h");
  EXPECT_TRUE(explanation.tensors[5].has_gradient);
  EXPECT_EQ(explanation.tensors[6].dimensions, "table");
  EXPECT_EQ(explanation.tensors[6].bytes, 24u);
}

TEST(Explain, OneSupportedBackendIsChosen) {
  const Explanation explanation = explain(problem_with("value = score"));
  ASSERT_FALSE(explanation.backends.empty());
  EXPECT_EQ(std::ranges::count_if(explanation.backends, [](const auto& backend) { return backend.chosen; }), 1);
  for (const BackendExplanation& backend : explanation.backends) {
    EXPECT_EQ(backend.support.supported, backend.support.reasons.empty()) << backend.support.backend;
    EXPECT_EQ(backend.support.supported, backend.forward_workspace_bytes.has_value()) << backend.support.backend;
  }
  ExplainOptions options;
  options.compile.backend = "reference";
  for (const BackendExplanation& backend : explain(problem_with("value = score"), options).backends) {
    EXPECT_EQ(backend.chosen, backend.support.backend == "reference");
  }
}

TEST(Explain, RefusesWhatCompileRefuses) {
  ExplainOptions options;
  options.compile.backend = "gpu";
  EXPECT_THROW(explain(problem_with("value = score"), options), Error);
  options.compile = {};
  options.compile.threads = -1;
  EXPECT_THROW(explain(problem_with("value = score"), options), Error);
  options.compile = {};
  options.compile.disabled_passes = {"no_such_pass"};
  EXPECT_THROW(explain(problem_with("value = score"), options), Error);
  AttentionProblem invalid = problem_with("value = score");
  invalid.batch = 0;
  EXPECT_THROW(explain(invalid), Error);
}

TEST(Explain, JsonHoldsWhatTheStructHolds) {
  const Explanation explanation =
      explain(problem_with("value = score\nkeep = q_idx - kv_idx >= 0 & q_idx - kv_idx < 4"));
  const auto json = nlohmann::json::parse(to_json(explanation));
  EXPECT_EQ(parse_problem(json["problem"].dump()), explanation.problem);
  EXPECT_EQ(json["mask"]["kind"], "band");
  EXPECT_EQ(json["mask"]["band"]["left"], 3);
  EXPECT_EQ(json["mask"]["band"]["right"], 0);
  EXPECT_EQ(json["work"]["pairs"], explanation.work.pairs);
  EXPECT_EQ(json["tensors"].size(), explanation.tensors.size());
  EXPECT_EQ(json["steps"].size(), explanation.steps.size());
  EXPECT_EQ(json["backends"].size(), explanation.backends.size());
}

}  // namespace
}  // namespace scoremod
