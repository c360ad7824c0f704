// Each allocation of a call fails once. The call says so, nothing is lost, and the next call is right. Texts of JSON
// are left out: the library that reads and writes them allocates in its destructors, and ends a process that can't.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/c_api.h"
#include "scoremod/explain.hpp"
#include "scoremod/open_attention.hpp"
#include "scoremod/problem_file.hpp"

#include "allocations/counted_allocations.hpp"
#include "c_api/guard.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

using Failing = test::Allocations::Failing;

constexpr std::int64_t kHeads = 4, kDim = 16, kQueries = 150, kKeys = 130;
/// As many are drawn of a scenario with more allocations.
constexpr std::int64_t kMostFailures = 200, kMostOfExplain = 40;

struct Outcome {
  scoremod_status status = SCOREMOD_OK;
  std::string message;
  std::vector<float> results;

  /// Whether to go on after this call, which may have set *text.
  bool take(scoremod_status of_call, char** text) {
    status = of_call;
    if (*text != nullptr) message = *text;
    scoremod_text_free(*text);
    return status == SCOREMOD_OK;
  }
};
using Scenario = std::function<void(Outcome&)>;

std::string problem_json(const std::string& keys) {
  return R"({"batch": 1, "heads_q": 4, "seq_q": 150, "seq_kv": )" + keys +
         R"(, "dim_qk": 16, "backward": true, "stats": true,
    "program": "operand slope: f32 [h]; value = score + slope * f32(kv_idx - q_idx) * 0.01; keep = kv_idx <= q_idx + 20"})";
}

scoremod_compile_options options_of() {
  scoremod_compile_options options{};
  options.struct_size = sizeof options;
  options.backend = "cpu";
  options.threads = 2;
  return options;
}

/// The tensors of a call, and those of its backward.
struct Tensors {
  std::vector<float> q, k, v, d_o, slope, o, lse, dq, dk, dv, d_slope;

  explicit Tensors(std::int64_t keys = kKeys)
      : o(kHeads * kQueries * kDim),
        lse(kHeads * kQueries),
        dq(o.size()),
        dk(kHeads * keys * kDim),
        dv(dk.size()),
        d_slope(kHeads) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, std::size_t size) {
      values.resize(size);
      for (float& value : values) value = normal(random);
    };
    fill(q, o.size());
    fill(k, dk.size());
    fill(v, dk.size());
    fill(d_o, o.size());
    fill(slope, kHeads);
  }
  static scoremod_const_buffer read(const std::vector<float>& values) {
    return {values.data(), values.size() * sizeof(float)};
  }
  static scoremod_buffer written(std::vector<float>& values) { return {values.data(), values.size() * sizeof(float)}; }

  void forward(const scoremod_attention* attention, Outcome& outcome) {
    const scoremod_operand operand{"slope", read(slope)};
    const scoremod_forward_args args = forward_args(operand);
    char* message = nullptr;
    if (!outcome.take(scoremod_attention_forward(attention, &args, &message), &message)) return;
    outcome.results = o;
  }
  scoremod_forward_args forward_args(const scoremod_operand& operand) {
    auto args = reading<scoremod_forward_args>(operand);
    args.o = written(o);
    args.lse = written(lse);
    return args;
  }
  /// The arguments of a direction, with what both directions read.
  template <class Args>
  Args reading(const scoremod_operand& operand) const {
    Args args{};
    args.struct_size = sizeof args;
    args.q = read(q);
    args.k = read(k);
    args.v = read(v);
    args.operands = &operand;
    args.operand_count = 1;
    return args;
  }
  void backward(const scoremod_attention* attention, Outcome& outcome) {
    const scoremod_operand operand{"slope", read(slope)};
    const scoremod_operand_gradient gradient{"slope", written(d_slope)};
    auto args = reading<scoremod_backward_args>(operand);
    args.o = read(o);
    args.lse = read(lse);
    args.d_o = read(d_o);
    args.dq = written(dq);
    args.dk = written(dk);
    args.dv = written(dv);
    args.d_operands = &gradient;
    args.d_operand_count = 1;
    char* message = nullptr;
    if (!outcome.take(scoremod_attention_backward(attention, &args, &message), &message)) return;
    for (const auto* values : {&dq, &dk, &dv, &d_slope})
      outcome.results.insert(outcome.results.end(), values->begin(), values->end());
  }
};

/// An attention that is destroyed whatever fails.
struct Handle {
  scoremod_attention* handle = nullptr;
  ~Handle() { scoremod_attention_destroy(handle); }

  bool create(const std::string& json, Outcome& outcome) {
    const scoremod_compile_options options = options_of();
    char* message = nullptr;
    return outcome.take(scoremod_attention_create(json.c_str(), &options, &handle, &message), &message);
  }
};

Handle& kept_attention() {
  static Handle attention;
  if (attention.handle == nullptr) {
    Outcome outcome;
    if (!attention.create(problem_json("130"), outcome)) ADD_FAILURE() << outcome.message;
  }
  return attention;
}

Handle& open_attention() {
  static Handle attention;
  if (attention.handle == nullptr) {
    Outcome outcome;
    if (!attention.create(problem_json("null"), outcome)) ADD_FAILURE() << outcome.message;
  }
  return attention;
}

/// The numbers of the allocations that are to fail.
std::vector<std::int64_t> drawn(std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::mt19937_64 random(test::test_seed());
  std::ranges::shuffle(numbers, random);
  numbers.resize(static_cast<std::size_t>(std::min(count, most)));
  return numbers;
}

/// Outcomes are made before anything may fail: their own texts are the test's allocations.
Outcome run_failing(const Scenario& scenario, std::int64_t number, Failing failing, bool& failed) {
  Outcome outcome;
  outcome.message.reserve(4096);
  outcome.results.reserve(1 << 17);
  test::Allocations::fail(number, failing);
  scenario(outcome);
  failed = test::Allocations::stop();
  return outcome;
}

void hold(const Scenario& scenario, std::int64_t most = kMostFailures) {
  Outcome expected;
  for (int warm = 0; warm < 3; ++warm) {
    expected = {};
    scenario(expected);
    ASSERT_EQ(expected.status, SCOREMOD_OK) << expected.message;
  }
  const std::int64_t before = test::Allocations::made();
  bool failed = false;
  run_failing(scenario, std::int64_t{1} << 40, Failing::kOne, failed);
  const std::int64_t count = test::Allocations::made() - before;
  int failures = 0;
  std::int64_t live = 0;
  // The second round finds what the first made the library keep: only a leak grows again.
  for (int round = 0; round < 2; ++round) {
    live = test::Allocations::live();
    for (const std::int64_t number : drawn(count, most)) {
      for (const Failing failing : {Failing::kOne, Failing::kRest}) {
        const Outcome found = run_failing(scenario, number, failing, failed);
        failures += failed;
        if (found.status != SCOREMOD_OK) {
          ASSERT_TRUE(failed) << found.message;
          ASSERT_EQ(found.status, SCOREMOD_ENVIRONMENT) << "allocation " << number << ": " << found.message;
          // Without any memory a reply of the queue has no text.
          if (failing == Failing::kOne || !found.message.empty()) {
            ASSERT_NE(found.message.find("memory"), std::string::npos) << number << ": " << found.message;
          }
        } else {
          ASSERT_EQ(found.results, expected.results) << "allocation " << number;
        }
        Outcome again;
        scenario(again);
        ASSERT_EQ(again.status, SCOREMOD_OK) << "after allocation " << number << ": " << again.message;
        ASSERT_EQ(again.results, expected.results) << "after allocation " << number;
      }
    }
    live = test::Allocations::live() - live;
  }
  EXPECT_LE(live, 0) << "allocations that the second round left, seed " << test::test_seed();
  EXPECT_EQ(failures > 0, count > 0);
}

/// Runs C++, and answers as the C interface does.
template <class Body>
bool run_guarded(Outcome& outcome, const Body& body) {
  char* message = nullptr;
  return outcome.take(c_api::guard(&message, body), &message);
}

CompileOptions cpp_options() {
  CompileOptions options;
  options.backend = "cpu";
  options.threads = 2;
  return options;
}

TEST(FailingAllocations, OfCompiling) {
  const AttentionProblem problem = parse_problem(problem_json("130"));
  const CompileOptions options = cpp_options();
  hold([&](Outcome& outcome) { run_guarded(outcome, [&] { Attention::compile(problem, options); }); });
}

TEST(FailingAllocations, OfOpenSizes) {
  const AttentionProblem problem = parse_problem(problem_json("null"));
  const CompileOptions options = cpp_options();
  hold([&](Outcome& outcome) { run_guarded(outcome, [&] { OpenAttention::compile(problem, options); }); });
}

TEST(FailingAllocations, OfAForward) {
  Tensors tensors;
  hold([&](Outcome& outcome) { tensors.forward(kept_attention().handle, outcome); });
}

TEST(FailingAllocations, OfABackward) {
  Tensors tensors;
  Outcome forward;
  tensors.forward(kept_attention().handle, forward);
  ASSERT_EQ(forward.status, SCOREMOD_OK) << forward.message;
  hold([&](Outcome& outcome) { tensors.backward(kept_attention().handle, outcome); });
}

/// A call at these sizes of the open attention.
void call_at(std::int64_t keys, Tensors& tensors, Outcome& outcome) {
  scoremod_sizes sizes{};
  sizes.struct_size = sizeof sizes;
  sizes.seq_kv = keys;
  Handle attention;
  char* message = nullptr;
  if (outcome.take(scoremod_attention_at(open_attention().handle, &sizes, &attention.handle, &message), &message))
    tensors.forward(attention.handle, outcome);
}

TEST(FailingAllocations, OfACallAtAKnownSize) {
  Tensors tensors(60);
  hold([&](Outcome& outcome) { call_at(60, tensors, outcome); });
}

/// More sizes than are kept take turns, so that none is known when it comes again. Values of zero give one output at
/// all sizes.
TEST(FailingAllocations, OfACallAtANewSize) {
  constexpr std::int64_t kSizes = 1100, kLeast = 20;
  Tensors tensors(kLeast + kSizes);
  std::ranges::fill(tensors.v, 0.0F);
  std::int64_t calls = 0;
  const Scenario scenario = [&](Outcome& outcome) { call_at(kLeast + calls++ % kSizes, tensors, outcome); };
  for (std::int64_t i = 0; i < kSizes; ++i) {  // from then on each size that comes takes another's place
    Outcome outcome;
    scenario(outcome);
  }
  hold(scenario);
}

TEST(FailingAllocations, OfTheCacheOfAttentions) {
  const AttentionProblem problem = parse_problem(problem_json("130"));
  const CompileOptions options = cpp_options();
  hold([&](Outcome& outcome) {
    run_guarded(outcome, [&] {
      clear_attention_cache();
      cached_attention(problem, options);
      cached_attention(problem, options);
    });
  });
}

TEST(FailingAllocations, OfSupportAndExplain) {
  const AttentionProblem problem = parse_problem(problem_json("130"));
  const CompileOptions options = cpp_options();
  hold(
      [&](Outcome& outcome) {
        run_guarded(outcome, [&] {
          support(problem, options);
          ExplainOptions of_explain;
          of_explain.compile = options;
          explain(problem, of_explain);
        });
      },
      kMostOfExplain);
}

/// The queue answers each request that it has taken, also without memory.
TEST(FailingAllocations, OfARequestQueue) {
  Tensors tensors;
  hold([&](Outcome& outcome) {
    struct Answer {
      scoremod_status status = SCOREMOD_OK;
      char message[256] = "";
      bool came = false;
    } answer;
    scoremod_request_queue* queue = nullptr;
    char* message = nullptr;
    if (!outcome.take(scoremod_request_queue_create(nullptr, &queue, &message), &message)) return;
    const scoremod_operand operand{"slope", Tensors::read(tensors.slope)};
    const scoremod_forward_args args = tensors.forward_args(operand);
    const auto reply = [](void* user, scoremod_status status, const char* text) {
      auto* to = static_cast<Answer*>(user);
      to->status = status;
      std::snprintf(to->message, sizeof to->message, "%s", text);
      to->came = true;
    };
    const bool taken = outcome.take(
        scoremod_request_queue_submit_forward(queue, kept_attention().handle, &args, reply, &answer, &message),
        &message);
    scoremod_status drained = SCOREMOD_OK;
    do drained = scoremod_request_queue_drain(queue, nullptr);
    while (drained == SCOREMOD_ENVIRONMENT);
    scoremod_request_queue_destroy(queue);
    EXPECT_EQ(answer.came, taken);
    if (!taken) return;
    outcome.status = answer.status;
    outcome.message = answer.message;
    if (answer.status == SCOREMOD_OK) outcome.results = tensors.o;
  });
}

}  // namespace
}  // namespace scoremod
