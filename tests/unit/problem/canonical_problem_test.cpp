#include "problem/canonical_problem.hpp"

#include <functional>

#include <gtest/gtest.h>

#include "problem/problem_members.hpp"

namespace scoremod::problem {
namespace {

AttentionProblem full_problem() {
  AttentionProblem problem;
  problem.program = Program::parse("operand x: f32 [h]\nvalue = score * x");
  problem.operands = {{"x", DType::kF32, {1}, {}}};
  return problem;
}

struct Change {
  std::string member;
  std::function<void(AttentionProblem&)> make;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> kChanges{
      {"batch", [](auto& p) { p.batch = 2; }},
      {"heads_q", [](auto& p) { p.heads_q = 2; }},
      {"heads_kv", [](auto& p) { p.heads_kv = 2; }},
      {"seq_q", [](auto& p) { p.seq_q = 2; }},
      {"seq_kv", [](auto& p) { p.seq_kv = 2; }},
      {"dim_qk", [](auto& p) { p.dim_qk = 2; }},
      {"dim_v", [](auto& p) { p.dim_v = 2; }},
      {"tokens_q", [](auto& p) { p.tokens_q = 1; }},
      {"tokens_kv", [](auto& p) { p.tokens_kv = 1; }},
      {"paged",
       [](auto& p) {
         p.paged = PagedKeys{1, 2, 3};
       }},
      {"paged",
       [](auto& p) {
         p.paged = PagedKeys{1, 3, 2};
       }},
      {"dtype", [](auto& p) { p.dtype = DType::kF16; }},
      {"dtype_kv", [](auto& p) { p.dtype_kv = DType::kE5M2; }},
      {"dtype_o", [](auto& p) { p.dtype_o = DType::kF16; }},
      {"dtype_d_o", [](auto& p) { p.dtype_d_o = DType::kE5M2; }},
      {"dtype_gradients", [](auto& p) { p.dtype_gradients = DType::kF16; }},
      {"q", [](auto& p) { p.q.layout = Layout::kSBHD; }},
      {"k", [](auto& p) { p.k.layout = Layout::kBHSD; }},
      {"v",
       [](auto& p) {
         p.v.strides = Strides{1, 2, 3, 4};
       }},
      {"v",
       [](auto& p) {
         p.v.strides = Strides{1, 2, 4, 3};
       }},
      {"o", [](auto& p) { p.o.strides = Strides{}; }},
      {"d_o", [](auto& p) { p.d_o = p.o; }},
      {"dq", [](auto& p) { p.dq = p.q; }},
      {"dk", [](auto& p) { p.dk = p.k; }},
      {"dv", [](auto& p) { p.dv = p.v; }},
      {"scale", [](auto& p) { p.scale = 0.125f; }},
      {"scale", [](auto& p) { p.scale = 0.25f; }},
      {"lengths", [](auto& p) { p.lengths.q = true; }},
      {"lengths", [](auto& p) { p.lengths.kv = true; }},
      {"sink", [](auto& p) { p.sink = Sink::kOffByOne; }},
      {"sink", [](auto& p) { p.sink = Sink::kLearned; }},
      {"dropout", [](auto& p) { p.dropout = 0.5f; }},
      {"dropout_keys", [](auto& p) { p.dropout_keys = true; }},
      {"given_deltas", [](auto& p) { p.given_deltas = true; }},
      {"program", [](auto& p) { p.program = Program::parse("operand x: f32 [h]\nvalue = score + x"); }},
      {"program", [](auto& p) { p.program = Program(); }},
      {"operands", [](auto& p) { p.operands.clear(); }},
      {"operands", [](auto& p) { p.operands[0].name = "y"; }},
      {"operands", [](auto& p) { p.operands[0].dtype = DType::kBF16; }},
      {"operands", [](auto& p) { p.operands[0].shape = {2}; }},
      {"operands",
       [](auto& p) {
         p.operands[0].shape = {1, 1};
       }},
      {"operands", [](auto& p) { p.operands[0].strides = {1}; }},
      {"operands", [](auto& p) { p.operands[0].gradient = false; }},
      {"backward", [](auto& p) { p.backward = true; }},
      {"stats", [](auto& p) { p.stats = true; }},
      {"max_logit", [](auto& p) { p.max_logit = true; }},
      {"amax_o", [](auto& p) { p.amax_o = true; }},
      {"amax_gradients", [](auto& p) { p.amax_gradients = true; }},
      {"index_offsets", [](auto& p) { p.index_offsets = true; }},
      {"deterministic", [](auto& p) { p.deterministic = true; }},
  };
  return kChanges;
}

TEST(CanonicalBytes, DifferWhereProblemsDo) {
  std::vector<AttentionProblem> problems{full_problem()};
  for (const Change& change : changes()) change.make(problems.emplace_back(full_problem()));
  for (std::size_t i = 0; i < problems.size(); ++i) {
    for (std::size_t j = 0; j < problems.size(); ++j) {
      EXPECT_EQ(canonical_bytes(problems[i]) == canonical_bytes(problems[j]), problems[i] == problems[j])
          << i << " and " << j;
    }
  }
}

TEST(CanonicalBytes, TheChangesAboveCoverEveryMember) {
  std::vector<std::string> changed;
  for (const Change& change : changes()) {
    if (changed.empty() || changed.back() != change.member) changed.push_back(change.member);
  }
  std::vector<std::string> members;
  const AttentionProblem problem;
  visit_members(problem, [&](const char* name, const auto&) { members.emplace_back(name); });
  EXPECT_EQ(changed, members);
}

TEST(CanonicalBytes, AreTheSameForEqualProblems) {
  EXPECT_EQ(canonical_bytes(full_problem()), canonical_bytes(full_problem()));
}

}  // namespace
}  // namespace scoremod::problem
