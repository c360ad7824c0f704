// A backward whose o and LSE cover more keys than its own, as in ring attention. Also an o that carries a gradient of
// the LSE.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/conformance.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

AttentionProblem all_keys() {
  AttentionProblem problem = test::small_problem();
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.backward = problem.stats = true;
  problem.program = Program::parse("value = 2.0 * score");
  return problem;
}

ConstBuffer output(const ProblemBuffers& buffers, const std::string& name) {
  const auto found = std::ranges::find(buffers.outputs(), name, &OutputTensor::name);
  return {found->bytes.data(), found->bytes.size()};
}

std::vector<float> floats(ConstBuffer buffer) {
  const auto* first = static_cast<const float*>(buffer.data);
  return {first, first + buffer.bytes / sizeof(float)};
}

/// `count` keys of a float32 tensor [batch, heads, keys, dim], from `begin` on.
std::vector<float> keys_of(const std::vector<float>& tensor, std::size_t rows, std::size_t begin, std::size_t count,
                           std::size_t dim) {
  std::vector<float> part;
  for (std::size_t start = begin * dim; start < tensor.size(); start += rows * dim)
    part.insert(part.end(), tensor.begin() + static_cast<std::ptrdiff_t>(start),
                tensor.begin() + static_cast<std::ptrdiff_t>(start + count * dim));
  return part;
}

/// The distance of dk and dv of the first keys alone, with o and the LSE of all, from those of all; over float32's
/// rounding of the largest.
double deviation(const std::string& backend, bool given_deltas) {
  const AttentionProblem whole = all_keys();
  const ProblemInputs inputs = random_inputs(whole, {test::test_seed(), {}});
  CompileOptions options;
  options.backend = backend;
  const Attention of_all = Attention::compile(whole, options);
  ProblemBuffers all(whole, buffers_of(inputs));
  of_all.forward(all.forward());
  of_all.backward(all.backward());

  AttentionProblem shard = whole;
  shard.seq_kv = whole.seq_kv / 2;
  shard.given_deltas = given_deltas;
  const auto rows = static_cast<std::size_t>(whole.seq_kv), count = static_cast<std::size_t>(shard.seq_kv);
  ProblemInputs first = inputs;
  const auto keep_first = [&](std::vector<std::byte>& bytes, std::int64_t dim) {
    const std::vector<float> part =
        keys_of(floats({bytes.data(), bytes.size()}), rows, 0, count, static_cast<std::size_t>(dim));
    const auto view = std::as_bytes(std::span(part));
    bytes.assign(view.begin(), view.end());
  };
  keep_first(first.k, whole.dim_qk);
  keep_first(first.v, whole.dim_v);
  ProblemBuffers part(shard, buffers_of(first));
  BackwardArgs args = part.backward();
  args.o = output(all, "o");
  args.lse = output(all, "lse");
  Attention::compile(shard, options).backward(args);

  double worst = 0;
  for (const auto& [name, dim] : {std::pair{"dk", whole.dim_qk}, std::pair{"dv", whole.dim_v}}) {
    const std::vector<float> found = floats(output(part, name));
    const std::vector<float> expected =
        keys_of(floats(output(all, name)), rows, 0, count, static_cast<std::size_t>(dim));
    double largest = 0, off = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
      off = std::max(off, std::abs(static_cast<double>(found[i]) - expected[i]));
    }
    worst = std::max(worst, off / (0x1p-24 * largest));
  }
  return worst;
}

TEST(GivenDeltas, OfAllKeysGiveAShardItsPart) {
  // Sums of seq_q terms, each a product of sums of a head dim.
  const AttentionProblem problem = all_keys();
  const auto terms = static_cast<double>(problem.seq_q + problem.dim_qk + problem.dim_v);
  for (const std::string& backend : test::tested_backends()) EXPECT_LT(deviation(backend, true), terms) << backend;
}

TEST(GivenDeltasNegativeControl, OnesOwnAreNotThoseOfAllKeys) { EXPECT_GT(deviation("reference", false), 1e4); }

TEST(GivenDeltasNegativeControl, WhatIgnoresThemIsFound) {
  AttentionProblem problem = all_keys();
  problem.sink = Sink::kLearned;
  problem.given_deltas = true;
  const compiler::CompiledProblem right = compiler::compile(problem);
  compiler::CompiledProblem faulty = right;
  faulty.problem.given_deltas = false;
  const ProblemInputs inputs = random_inputs(problem, {test::test_seed(), {}});
  const auto wrong = [&](const compiler::CompiledProblem& subject) {
    std::vector<std::string> names;
    for (const OutputCheck& output :
         checking::check_subject(right, test::reference_subject(subject), inputs, {}).outputs) {
      if (!output.passed()) names.push_back(output.name);
    }
    return names;
  };
  EXPECT_EQ(wrong(right), std::vector<std::string>{});
  EXPECT_EQ(wrong(faulty), (std::vector<std::string>{"dq", "dk", "d_sink"}));
}

}  // namespace
}  // namespace scoremod
