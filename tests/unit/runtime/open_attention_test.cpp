#include "scoremod/open_attention.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/explain.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/problem_file.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

AttentionProblem open_problem() {
  return parse_problem(
      R"PROBLEM({"batch": null, "heads_q": 4, "heads_kv": 2, "seq_q": null, "seq_kv": null, "dim_qk": 16, "backward": true,
          "program": ["operand slopes: f32 [h]", "operand ids: i32 [b, kv_idx]", "table bias: f32 rank 1",
                      "value = score + slopes * f32(kv_idx - q_idx) + bias[kv_idx]",
                      "keep = kv_idx <= q_idx + 3 & ids > 0"],
          "operands": [{"name": "bias", "shape": [null]}]})PROBLEM");
}

Sizes sizes_of(std::int64_t batch, std::int64_t seq_q, std::int64_t seq_kv) {
  Sizes sizes;
  sizes.batch = batch;
  sizes.seq_q = seq_q;
  sizes.seq_kv = seq_kv;
  sizes.operands.push_back({"bias", {seq_kv + 1}, {}});
  return sizes;
}

CompileOptions on_cpu() {
  CompileOptions options;
  options.backend = "cpu";
  return options;
}

/// o and lse of one call.
std::vector<std::byte> forward(const Attention& attention) {
  const AttentionProblem& problem = attention.problem();
  const ProblemInputs inputs = random_inputs(problem);
  std::vector<std::byte> o(static_cast<std::size_t>(problem.batch * problem.heads_q * problem.seq_q * problem.dim_v) *
                           4);
  ForwardArgs args;
  args.q = {inputs.q.data(), inputs.q.size()};
  args.k = {inputs.k.data(), inputs.k.size()};
  args.v = {inputs.v.data(), inputs.v.size()};
  for (const OwnedOperand& operand : inputs.operands)
    args.operands.push_back({operand.name, {operand.bytes.data(), operand.bytes.size()}});
  args.o = {o.data(), o.size()};
  attention.forward(args);
  return o;
}

TEST(OpenAttention, AllSizesAreOneCompile) {
  clear_attention_cache();
  const CompileCounts before = compile_counts();
  const OpenAttention open = OpenAttention::compile(open_problem(), on_cpu());
  for (std::int64_t length = 1; length <= 40; ++length) open.at(sizes_of(1 + length % 3, 1 + length % 5, length));
  EXPECT_EQ(compile_counts().problems - before.problems, 1);
}

TEST(OpenAttention, SizesWithAnotherStructureAreCompiledAnew) {
  clear_attention_cache();
  const OpenAttention open = OpenAttention::compile(open_problem(), on_cpu());
  const auto compiles = [](const OpenAttention& of, const Sizes& sizes) {
    const CompileCounts before = compile_counts();
    of.at(sizes);
    return compile_counts().problems - before.problems;
  };
  Sizes strided = sizes_of(2, 5, 5);
  strided.q = Strides{320, 80, 16, 1};
  EXPECT_EQ(compiles(open, strided), 0);
  // A gradient with strides has a layout of its own.
  strided.dq = strided.q;
  EXPECT_EQ(compiles(open, strided), 1);
  // Kernels read caches with a scale for each row as they are, and none with a scale for each element.
  const OpenAttention scaled = OpenAttention::compile(parse_problem(R"({
      "batch": 1, "heads_q": 2, "seq_q": 3, "seq_kv": null, "dim_qk": 16, "dtype": "bf16", "dtype_kv": "e4m3",
      "operands": [{"name": "descale_k", "shape": [1, 1, null, null]}, {"name": "descale_v", "shape": []}]})"),
                                                      on_cpu());
  Sizes sizes;
  sizes.seq_kv = 5;
  int more = 0;
  for (const std::int64_t scales : {1, 16, 1}) {
    sizes.operands = {{"descale_k", {1, 1, 5, scales}, {}}};
    more += static_cast<int>(compiles(scaled, sizes));
  }
  EXPECT_EQ(more, 1);
}

TEST(KnownStructures, SupportExplainAndScalesCompileOnce) {
  clear_attention_cache();
  AttentionProblem problem = problem_at(open_problem(), sizes_of(2, 5, 9));
  const CompileCounts before = compile_counts();
  support(problem, on_cpu());
  ExplainOptions options;
  options.compile = on_cpu();
  EXPECT_FALSE(explain(problem, options).steps.empty());
  problem.scale = 0.25f;
  EXPECT_FALSE(explain(problem, options).steps.empty());
  Attention::compile(problem, on_cpu());
  EXPECT_EQ(compile_counts().problems - before.problems, 1);
}

TEST(KnownStructures, AScaleThatTheProgramReadsIsStructure) {
  clear_attention_cache();
  AttentionProblem problem = problem_at(open_problem(), sizes_of(2, 5, 9));
  problem.program = Program::parse("value = score / qk_scale + 1.0");
  problem.operands.clear();
  const CompileCounts before = compile_counts();
  for (const float scale : {0.5f, 0.25f}) {
    problem.scale = scale;
    Attention::compile(problem, on_cpu());
  }
  EXPECT_EQ(compile_counts().problems - before.problems, 2);
}

TEST(OpenAttention, ComputesWhatTheFixedProblemDoes) {
  const OpenAttention open = OpenAttention::compile(open_problem(), on_cpu());
  for (const Sizes& sizes : {sizes_of(1, 1, 1), sizes_of(3, 7, 20), sizes_of(2, 64, 70), sizes_of(1, 5, 3)}) {
    const AttentionProblem fixed = problem_at(open_problem(), sizes);
    const auto attention = open.at(sizes);
    EXPECT_EQ(attention->problem(), Attention::compile(fixed, on_cpu()).problem());
    clear_attention_cache();
    EXPECT_EQ(forward(*attention), forward(Attention::compile(fixed, on_cpu())));
  }
}

TEST(OpenAttention, KeepsTheAttentionOfSizes) {
  const OpenAttention open = OpenAttention::compile(open_problem(), on_cpu());
  EXPECT_EQ(open.at(sizes_of(2, 3, 4)), open.at(sizes_of(2, 3, 4)));
  EXPECT_NE(open.at(sizes_of(2, 3, 4)), open.at(sizes_of(2, 3, 5)));
  Sizes strided = sizes_of(2, 3, 4);
  strided.k = Strides{1024, 16, 64, 1};
  EXPECT_NE(open.at(strided), open.at(sizes_of(2, 3, 4)));
  EXPECT_EQ(open.at(strided)->problem().k.strides->batch, 1024);
}

TEST(OpenAttention, AsksTheEnvironmentAsItIsCompiled) {
  CompileOptions options;
  options.memory = MemoryKind::kHost;
  const OpenAttention open = OpenAttention::compile(open_problem(), options);
  setenv("SCOREMOD_NEW_SIZES", "sometimes", 1);
  EXPECT_EQ(open.at(sizes_of(2, 3, 4))->problem().seq_kv, 4);
  test::expect_refusal("SCOREMOD_NEW_SIZES: expected wait or serve, found 'sometimes'",
                       [&] { OpenAttention::compile(open_problem(), options); });
  unsetenv("SCOREMOD_NEW_SIZES");
}

TEST(OpenAttention, TellsApartWhichTensorHasStrides) {
  const OpenAttention open = OpenAttention::compile(open_problem(), on_cpu());
  const Strides strides{320, 80, 16, 1};
  std::set<std::shared_ptr<const Attention>> found{open.at(sizes_of(2, 5, 5))};
  for (std::optional<Strides> Sizes::*tensor :
       {&Sizes::q, &Sizes::k, &Sizes::v, &Sizes::o, &Sizes::d_o, &Sizes::dq, &Sizes::dk, &Sizes::dv}) {
    Sizes sizes = sizes_of(2, 5, 5);
    sizes.*tensor = strides;
    EXPECT_TRUE(found.insert(open.at(sizes)).second);
    EXPECT_FALSE(found.insert(open.at(sizes)).second);
  }
  Sizes sizes = sizes_of(2, 5, 5);
  sizes.operands.front().strides = {2};
  EXPECT_TRUE(found.insert(open.at(sizes)).second);
}

TEST(OpenAttention, SaysWhichSizeIsMissingOrWrong) {
  const OpenAttention open = OpenAttention::compile(open_problem(), on_cpu());
  Sizes sizes = sizes_of(2, 3, 4);
  sizes.seq_kv = 0;
  EXPECT_EQ(test::refusal([&] { open.at(sizes); }),
            "sizes.seq_kv: expected a size of at least 1, since the problem leaves 'seq_kv' open; found none");
  sizes = sizes_of(2, 3, 4);
  sizes.heads_q = 8;
  EXPECT_EQ(test::refusal([&] { open.at(sizes); }),
            "sizes.heads_q: expected 4, which the problem fixes, or 0; found 8");
  sizes = sizes_of(2, 3, 4);
  sizes.tokens_q = 5;
  EXPECT_EQ(test::refusal([&] { open.at(sizes); }),
            "sizes.tokens_q: expected 0 in a problem without tokens_q, found 5");
  sizes = sizes_of(2, 3, 4);
  sizes.operands.front().shape = {};
  EXPECT_NE(test::refusal([&] { open.at(sizes); }).find("sizes.operands['bias'].shape[0]: expected a size"),
            std::string::npos);
  sizes = sizes_of(-3, 3, 4);
  EXPECT_NE(test::refusal([&] { open.at(sizes); }).find("batch: expected a size from 1"), std::string::npos);
}

TEST(OpenAttention, AFixedCompileRefusesOpenSizes) {
  EXPECT_NE(test::refusal([] { Attention::compile(open_problem(), on_cpu()); }).find("found an open one"),
            std::string::npos);
}

TEST(OpenAttention, OperandsOfFieldsHaveTheSizesOfTheCall) {
  const AttentionProblem problem = parse_problem(
      R"({"batch": null, "heads_q": null, "seq_q": null, "seq_kv": null, "dim_qk": 8, "sink": "learned",
          "lengths": {"kv": true}, "operands": [{"name": "sink", "shape": [null]}, {"name": "lengths_kv", "shape": [null]}]})");
  Sizes sizes;
  sizes.batch = 3;
  sizes.heads_q = sizes.heads_kv = 2;
  sizes.seq_q = sizes.seq_kv = 5;
  const AttentionProblem fixed = problem_at(problem, sizes);
  EXPECT_EQ(fixed.operands[0].shape, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(fixed.operands[1].shape, (std::vector<std::int64_t>{3}));
}

TEST(OpenAttention, JsonKeepsWhatIsOpen) {
  EXPECT_EQ(parse_problem(to_json(open_problem())), open_problem());
  EXPECT_TRUE(has_open_sizes(open_problem()));
  EXPECT_FALSE(has_open_sizes(problem_at(open_problem(), sizes_of(1, 2, 3))));
}

TEST(OpenAttention, AModifierThatIsMadeForSizesIsRefused) {
  const auto parse = [](const char* modifiers) {
    return parse_problem(std::string(R"({"batch": 2, "heads_q": 2, "seq_q": null, "dim_qk": 8, "program": )") +
                         modifiers + "}");
  };
  EXPECT_NE(test::refusal([&] { parse(R"({"mask_mod": ["causal_bottom_right"]})"); }).find("made for the sizes"),
            std::string::npos);
  EXPECT_EQ(parse(R"({"mask_mod": ["documents"]})").operands.front().shape, (std::vector<std::int64_t>{2, kOpenSize}));
}

TEST(OpenAttention, ThreadsShareTheAttentionsOfSizes) {
  const OpenAttention open = OpenAttention::compile(open_problem(), on_cpu());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (std::int64_t length = 1; length <= 50; ++length) {
        const auto attention = open.at(sizes_of(1, 1, length));
        if (attention->problem().seq_kv != length) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace scoremod
