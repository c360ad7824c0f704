// Calls of the C interface, right and wrong, in memory that ends where they say. Each backend of the host answers
// alike.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "check/random_problem.hpp"
#include "property/c_api/drawn_call.hpp"
#include "property/c_api/mistakes.hpp"
#include "support/mixed_options.hpp"
#include "support/test_seed.hpp"

namespace scoremod::test {
namespace {

constexpr int kProblems = 80;
constexpr int kShards = 4;
constexpr int kCalls = 60;  // of each problem and direction

checking::CheckCase drawn_case(std::uint64_t seed) {
  checking::RandomProblemOptions options = mixed_options();
  options.max_scores = 400;
  return checking::random_problem(seed, options);
}

/// The outputs of a direction before any call.
std::vector<std::vector<std::byte>> untouched(const DrawnCall& call) {
  std::vector<std::vector<std::byte>> all;
  const auto add = [&](const DrawnBuffer& buffer) {
    all.push_back(buffer.is_null ? std::vector<std::byte>() : buffer.contents);
  };
  for (const DrawnOperand& gradient : call.d_operands.elements) add(gradient.buffer);
  for (const DrawnTensor& tensor : call.tensors) {
    if (tensor.is_output) add(tensor.buffer);
  }
  return all;
}

class Caller {
 public:
  explicit Caller(const AttentionProblem& problem) : cpu_(problem, "cpu"), reference_(problem, "reference") {}

  /// Makes the call by each backend, and holds it to what is true of all.
  Outcome make(const DrawnCall& call, Effect effect = Effect::kSame) const {
    const Outcome outcome = cpu_.run(call), other = reference_.run(call);
    EXPECT_TRUE(outcome.status == other.status || effect == Effect::kNeeds)
        << outcome.message << "\nreference: " << other.message;
    for (const Outcome& each : {outcome, other}) {
      EXPECT_EQ(each.message.empty(), each.status == SCOREMOD_OK);
      if (each.status == SCOREMOD_OK) continue;
      EXPECT_TRUE(each.status == SCOREMOD_INVALID_ARGUMENT || each.status == SCOREMOD_UNSUPPORTED) << each.message;
      EXPECT_TRUE(each.outputs == untouched(call)) << "a call that is refused has written: " << each.message;
    }
    return outcome;
  }

 private:
  CompiledTwice cpu_, reference_;
};

/// The outputs of the case's calls in C++.
struct Expected {
  explicit Expected(const checking::CheckCase& made, const ProblemInputs& inputs)
      : buffers(made.problem, buffers_of(inputs)) {
    CompileOptions options;
    options.backend = "cpu";
    const Attention attention = Attention::compile(made.problem, options);
    attention.forward(buffers.forward(made.call));
    if (made.problem.backward) attention.backward(buffers.backward(made.call));
  }

  const std::vector<std::byte>& of(const std::string& name) const {
    static const std::vector<std::byte> kNone;
    const auto found = std::ranges::find(buffers.outputs(), name, &OutputTensor::name);
    return found == buffers.outputs().end() ? kNone : found->bytes;
  }

  std::vector<std::vector<std::byte>> of(const DrawnCall& call) const {
    std::vector<std::vector<std::byte>> all;
    for (const DrawnOperand& gradient : call.d_operands.elements) all.push_back(of("d_" + *gradient.name));
    for (const DrawnTensor& tensor : call.tensors) {
      if (tensor.is_output) all.push_back(of(tensor.name));
    }
    return all;
  }

  ProblemBuffers buffers;
};

/// A right call by each road does what the call in C++ does, bit for bit.
void expect_right_calls(const Caller& caller, DrawnCall right, const Expected& expected) {
  for (const Road road : {Road::kFixed, Road::kAt, Road::kPrepared, Road::kPreparedAtSizes}) {
    right.road = road;
    const Outcome outcome = caller.make(right);
    EXPECT_EQ(outcome.status, SCOREMOD_OK) << outcome.message;
    EXPECT_TRUE(outcome.outputs == expected.of(right)) << "road " << static_cast<int>(road);
    EXPECT_TRUE(outcome.outputs != untouched(right));
  }
}

void expect_each_mistake_is_seen(const Caller& caller, const DrawnCall& right, const Expected& expected,
                                 std::mt19937_64& random) {
  for (int i = 0; i < kCalls; ++i) {
    DrawnCall call = right;
    call.road = static_cast<Road>(random() % 4);
    const Mistake& mistake = mistakes()[random() % mistakes().size()];
    const std::optional<Effect> effect = mistake.make(call, random);
    if (!effect) continue;
    SCOPED_TRACE(mistake.name + " in call " + std::to_string(i) + (call.is_backward ? " backward" : " forward") +
                 ", road " + std::to_string(static_cast<int>(call.road)));
    const Outcome outcome = caller.make(call, *effect);
    if (*effect == Effect::kRefused) {
      EXPECT_EQ(outcome.status, SCOREMOD_INVALID_ARGUMENT) << outcome.message;
    } else if (*effect == Effect::kSame) {
      EXPECT_EQ(outcome.status, SCOREMOD_OK) << outcome.message;
      EXPECT_TRUE(outcome.outputs == expected.of(right));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

class RandomCalls : public ::testing::TestWithParam<int> {};

TEST_P(RandomCalls, AreRightOrRefused) {
  for (int number = GetParam(); number < kProblems; number += kShards) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(number);
    SCOPED_TRACE("problem " + std::to_string(number) + ", SCOREMOD_TEST_SEED=" + std::to_string(test_seed()));
    std::mt19937_64 random(seed);
    const checking::CheckCase made = drawn_case(seed);
    const ProblemInputs inputs = random_inputs(made.problem, {made.seed, made.fills});
    const Caller caller(made.problem);
    const Expected expected(made, inputs);
    const DrawnForward forward{expected.of("o"), expected.of("lse")};
    for (const DrawnForward* read : {static_cast<const DrawnForward*>(nullptr), &forward}) {
      if (read != nullptr && !made.problem.backward) break;
      const DrawnCall right = right_call(made.problem, inputs, made.call, read);
      expect_right_calls(caller, right, expected);
      expect_each_mistake_is_seen(caller, right, expected, random);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, RandomCalls, ::testing::Range(0, kShards));

}  // namespace
}  // namespace scoremod::test
