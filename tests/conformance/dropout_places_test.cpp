// Keys of dropout that say where a shard's queries and keys are in the whole sequence: in stripes, or from some index
// on. Against the dense formula, which knows the places by themselves, and against the whole on the same backend.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/conformance.hpp"
#include "problem/call_dropout.hpp"
#include "support/check_report.hpp"
#include "support/dense_attention.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using problem::DropoutPlaces;

constexpr float kProbability = 0.4F;

/// Sizes that no stripe divides, dense in the order that the dense formula has.
AttentionProblem placed_problem() {
  AttentionProblem problem = test::small_problem();
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.seq_q = 13;
  problem.seq_kv = 37;
  problem.backward = problem.stats = true;
  problem.program = Program::parse("value = 2.0 * score\nkeep = kv_idx < q_idx + 20");
  problem.dropout = kProbability;
  problem.dropout_keys = true;
  problem.operands.push_back({"dropout_keys", DType::kI32, {problem.batch, problem::kPlacedDropoutKeyWords}, {}});
  return problem;
}

void set_keys(ProblemInputs& inputs, const std::vector<std::uint32_t>& row) {
  const auto keys = std::ranges::find(inputs.operands, "dropout_keys", &OwnedOperand::name);
  for (std::size_t i = 0; i < keys->bytes.size() / sizeof(std::int32_t); ++i) {
    const std::size_t batch = i / row.size(), word = i % row.size();
    const std::uint32_t counter = word == 2 ? static_cast<std::uint32_t>(batch) : 0;
    store_element(keys->bytes.data(), DType::kI32, static_cast<Index>(i),
                  static_cast<std::int32_t>(row[word] + counter));
  }
}

std::vector<std::uint32_t> row_of(const DropoutPlaces& queries, const DropoutPlaces& keys) {
  return {0x89abcdefU,    0x01234567U,  6,          11,          queries.first,
          queries.tokens, queries.step, keys.first, keys.tokens, keys.step};
}

ProblemBuffers run(const AttentionProblem& problem, const ProblemInputs& inputs, const std::string& backend,
                   const CallOptions& call = {}) {
  CompileOptions options;
  options.backend = backend;
  const Attention attention = Attention::compile(problem, options);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  attention.forward(buffers.forward(call));
  if (problem.backward) attention.backward(buffers.backward(call));
  return buffers;
}

const std::vector<std::byte>& bytes_of(const ProblemBuffers& buffers, const std::string& name) {
  return std::ranges::find(buffers.outputs(), name, &OutputTensor::name)->bytes;
}

/// An index's place, said once more.
Index place(const DropoutPlaces& places, Index i) {
  return places.tokens == 0 ? places.first + i
                            : places.first + i / Index{places.tokens} * places.step + i % Index{places.tokens};
}

const std::vector<std::pair<DropoutPlaces, DropoutPlaces>> kPlaces{
    {{}, {}}, {{8, 0, 0}, {22, 0, 0}}, {{3, 4, 12}, {4, 8, 32}}, {{1, 1, 3}, {2, 1, 4}}, {{0, 5, 10}, {5, 6, 7}}};

TEST(DropoutPlaces, DecideWhatIsDropped) {
  const AttentionProblem problem = placed_problem();
  const problem::DropoutMask mask(kProbability, {0x89abcdefU, 0x01234567U});
  for (const auto& [queries, keys] : kPlaces) {
    ProblemInputs inputs = random_inputs(problem);
    set_keys(inputs, row_of(queries, keys));
    test::DenseModifier modifier;
    modifier.value = [](double s, Index, Index, Index, Index) { return 2 * s; };
    modifier.slope = [](double, Index, Index, Index, Index) { return 2.0; };
    modifier.keep = [](Index, Index, Index q, Index kv) { return kv < q + 20; };
    modifier.share = [&](Index b, Index h, Index q, Index kv) {
      return mask.keeps(6 + b, 11 + h, place(queries, q), place(keys, kv)) ? 1 / (1 - static_cast<double>(kProbability))
                                                                           : 0;
    };
    const auto values = [&](const std::vector<std::byte>& bytes) {
      std::vector<double> read;
      for (std::size_t i = 0; i < bytes.size() / sizeof(float); ++i)
        read.push_back(load_element<double>(bytes.data(), DType::kF32, static_cast<Index>(i)));
      return read;
    };
    const test::DenseResult expected = test::dense_attention(
        problem, {values(inputs.q), values(inputs.k), values(inputs.v), values(inputs.d_o)}, modifier);
    const ProblemBuffers found = run(problem, inputs, "reference");
    for (const auto& [name, of_name] : {std::pair{"o", &expected.o}, std::pair{"dq", &expected.dq},
                                        std::pair{"dk", &expected.dk}, std::pair{"dv", &expected.dv}}) {
      const std::vector<double> of_found = values(bytes_of(found, name));
      ASSERT_EQ(of_found.size(), of_name->size()) << name;
      for (std::size_t i = 0; i < of_found.size(); ++i)
        ASSERT_NEAR(of_found[i], (*of_name)[i], 0x1p-24 * std::abs((*of_name)[i]) + 1e-12) << name << " " << i;
    }
    for (const std::string& backend : test::tested_backends()) {
      CheckOptions options;
      options.compile.backend = backend;
      options.inputs = inputs;
      const CheckReport report = check(problem, options);
      EXPECT_TRUE(report.passed()) << test::describe(report);
    }
  }
}

/// Stripes in a row are the axis itself, and so are the offsets of a call.
TEST(DropoutPlaces, OfTheWholeSequenceAreNone) {
  AttentionProblem plain = placed_problem();
  plain.operands.clear();
  for (const char* backend : {"cpu", "reference"}) {
    const auto of_plain = [&](const CallOptions& call) {
      ProblemInputs inputs = random_inputs(plain);
      set_keys(inputs, {0x89abcdefU, 0x01234567U, 6, 11});
      return run(plain, inputs, backend, call);
    };
    const auto of_placed = [&](const DropoutPlaces& queries, const DropoutPlaces& keys) {
      ProblemInputs inputs = random_inputs(placed_problem());
      set_keys(inputs, row_of(queries, keys));
      return run(placed_problem(), inputs, backend);
    };
    const ProblemBuffers expected = of_plain({});
    for (const auto& places : std::vector<DropoutPlaces>{{0, 0, 0}, {0, 4, 4}, {0, 1, 1}, {0, 7, 7}}) {
      const ProblemBuffers found = of_placed(places, places);
      for (const char* name : {"o", "dq", "dk", "dv"})
        EXPECT_EQ(bytes_of(found, name), bytes_of(expected, name)) << backend << " " << name << " " << places.tokens;
    }
    EXPECT_NE(bytes_of(of_placed({1, 0, 0}, {}), "o"), bytes_of(expected, "o")) << backend;
    EXPECT_NE(bytes_of(of_placed({}, {4, 0, 0}), "o"), bytes_of(expected, "o")) << backend;
  }
}

TEST(DropoutPlacesNegativeControl, StripesTakenForBlocksAreFound) {
  const AttentionProblem problem = placed_problem();
  ProblemInputs right = random_inputs(problem), wrong = right;
  set_keys(right, row_of({3, 4, 12}, {4, 8, 32}));
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  for (const auto& row :
       {row_of({3, 0, 0}, {4, 8, 32}), row_of({3, 4, 12}, {4, 0, 0}), row_of({3, 4, 12}, {4, 8, 24})}) {
    set_keys(wrong, row);
    const checking::Subject subject = test::reference_subject(compiled);
    checking::Subject faulty = subject;
    faulty.forward = [&](ForwardArgs args, Buffer workspace) {
      args.operands = buffers_of(wrong).operands;
      subject.forward(args, workspace);
    };
    EXPECT_TRUE(checking::check_subject(compiled, subject, right, {}).passed());
    EXPECT_FALSE(checking::check_subject(compiled, faulty, right, {}).passed());
  }
}

}  // namespace
}  // namespace scoremod
