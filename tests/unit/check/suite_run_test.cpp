#include "check/suite_run.hpp"

#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "problem/strided_tensor.hpp"
#include "support/faulty_subject.hpp"

namespace scoremod::checking {
namespace {

CheckCase small_case(const std::string& name = "small") {
  CheckCase made{name, {}};
  AttentionProblem& problem = made.problem;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = 9;
  problem.seq_kv = 12;
  problem.dim_qk = problem.dim_v = 8;
  problem.program = Program::parse("operand t: f32 [h]\nvalue = 4.0 * tanh(score / t)\nkeep = kv_idx <= q_idx + 3");
  problem.operands = {{"t", DType::kF32, {2}, {}}};
  problem.backward = problem.stats = true;
  return made;
}

/// Checks the reference backend with a fault; plain attention, which has no operand, is left without one.
CheckFunction check_of(const std::function<Subject(Subject)>& fault) {
  return [fault](const AttentionProblem& problem, const CheckOptions& options) {
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const Subject right = test::reference_subject(compiled);
    return check_subject(compiled, problem.operands.empty() ? right : fault(right), *options.inputs, options);
  };
}

std::vector<SuiteVerdict> verdicts(const std::vector<SuiteResult>& results) {
  std::vector<SuiteVerdict> out;
  for (const SuiteResult& result : results) out.push_back(result.verdict);
  return out;
}

void double_first(void* data) {
  store_element(data, DType::kF32, 0, 2 * load_element<double>(data, DType::kF32, 0) + 1);
}

TEST(SuiteRun, ARightBackendIsRightAndAsExactAsPlainAttention) {
  const auto results = run_case(small_case(), {}, check_of([](Subject subject) { return subject; }));
  ASSERT_EQ(verdicts(results), (std::vector{SuiteVerdict::kRight, SuiteVerdict::kRight}));
  EXPECT_EQ(results[0].direction, SuiteDirection::kForward);
  EXPECT_EQ(results[1].direction, SuiteDirection::kBackward);
  std::vector<std::string> names;
  for (const SuiteResult& result : results) {
    EXPECT_TRUE(result.reasons.empty());
    EXPECT_NE(result.worst(), nullptr);
    for (const SuiteOutput& output : result.outputs) {
      names.push_back(output.check.name);
      EXPECT_EQ(output.plain_attention_error.has_value(), output.check.name != "lse") << output.check.name;
      EXPECT_TRUE(output.is_near_plain_attention()) << output.check.name;
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"o", "lse", "dq", "dk", "dv", "d_t"}));
}

TEST(SuiteRun, AWrongBackwardIsWrongInItsDirection) {
  for (const std::string wrong : {"dq", "dk", "dv", "d_t"}) {
    const auto results = run_case(small_case(), {}, check_of([&](const Subject& subject) {
                                    return test::after_backward(subject, [&](const BackwardArgs& args) {
                                      double_first(wrong == "dq"   ? args.dq.data
                                                   : wrong == "dk" ? args.dk.data
                                                   : wrong == "dv" ? args.dv.data
                                                                   : args.d_operands.at(0).buffer.data);
                                    });
                                  }));
    ASSERT_EQ(verdicts(results), (std::vector{SuiteVerdict::kRight, SuiteVerdict::kWrong})) << wrong;
    EXPECT_EQ(results[1].worst()->check.name, wrong);
    EXPECT_FALSE(results[1].worst()->is_near_plain_attention());
    EXPECT_TRUE(results[1].reasons.at(0).starts_with(wrong + ": ")) << results[1].reasons.at(0);
  }
}

TEST(SuiteRun, AWrongForwardIsWrong) {
  const auto results =
      run_case(small_case(), {}, check_of([](const Subject& subject) {
                 return test::after_forward(subject, [](const ForwardArgs& args) { double_first(args.o.data); });
               }));
  EXPECT_EQ(results[0].verdict, SuiteVerdict::kWrong);
  EXPECT_EQ(results[0].worst()->check.name, "o");
}

TEST(SuiteRun, AnOutputThatIsNotWrittenIsWorseThanAnyError) {
  const auto results =
      run_case(small_case(), {}, check_of([](const Subject& subject) {
                 return test::after_backward(subject, [](const BackwardArgs& args) {
                   store_element(args.dv.data, DType::kF32, 3, std::numeric_limits<double>::quiet_NaN());
                   double_first(args.dq.data);
                 });
               }));
  ASSERT_EQ(results[1].verdict, SuiteVerdict::kWrong);
  EXPECT_EQ(results[1].worst()->check.name, "dv");
}

TEST(SuiteRun, AWriteOutsideTheOutputsIsWrongInItsDirection) {
  const auto write_before = [](const void* data) {
    static_cast<std::byte*>(const_cast<void*>(data))[-1] ^= std::byte{1};
  };
  const auto forward =
      run_case(small_case(), {}, check_of([&](const Subject& subject) {
                 return test::after_forward(subject, [&](const ForwardArgs& args) { write_before(args.o.data); });
               }));
  EXPECT_EQ(forward[0].verdict, SuiteVerdict::kWrong);
  EXPECT_TRUE(forward[0].reasons.at(0).starts_with("memory: forward: 'o'")) << forward[0].reasons.at(0);
  const auto backward =
      run_case(small_case(), {}, check_of([&](const Subject& subject) {
                 return test::after_backward(subject, [&](const BackwardArgs& args) { write_before(args.q.data); });
               }));
  EXPECT_EQ(verdicts(backward), (std::vector{SuiteVerdict::kRight, SuiteVerdict::kWrong}));
  EXPECT_TRUE(backward[1].reasons.at(0).starts_with("memory: backward: 'q'")) << backward[1].reasons.at(0);
}

TEST(SuiteRun, ARefusedBackwardLeavesTheForwardToBeChecked) {
  const auto results = run_case(small_case(), {}, [](const AttentionProblem& problem, const CheckOptions& options) {
    if (problem.backward) fail_unsupported("no backward today");
    return check(problem, options);
  });
  EXPECT_EQ(verdicts(results), (std::vector{SuiteVerdict::kRight, SuiteVerdict::kRefused}));
  EXPECT_EQ(results[1].reasons, std::vector<std::string>{"no backward today"});
  EXPECT_EQ(results[1].worst(), nullptr);
  EXPECT_EQ(results[0].backend, "cpu");
  EXPECT_EQ(results[1].backend, "");
  EXPECT_TRUE(results[0].outputs.at(0).plain_attention_error.has_value());
}

TEST(SuiteRun, WhatItsCallbackThrowsEndsItAndComesOutOfIt) {
  const std::vector<CheckCase> cases(20, small_case("one"));
  for (const int threads : {1, 3}) {
    CheckSuiteOptions options;
    options.threads = threads;
    options.on_progress = [](const SuiteProgress& now) {
      if (now.done == 2) throw std::runtime_error("enough");
    };
    std::atomic<int> calls = 0;
    try {
      run_suite(cases, options, [&](const AttentionProblem& problem, const CheckOptions& check_options) {
        ++calls;
        return check(problem, check_options);
      });
      FAIL() << "expected what the callback threw";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "enough");
    }
    // Each problem is checked twice: as it is, and as plain attention.
    EXPECT_LE(calls, 2 * (2 + threads)) << "no further problem begins";
  }
}

TEST(SuiteRun, WhatACheckThrowsIsAVerdictAndTheNextProblemRuns) {
  const std::vector<CheckCase> cases{small_case("first"), small_case("bad"), small_case("last")};
  for (const int threads : {1, 3}) {
    CheckSuiteOptions options;
    options.threads = threads;
    std::vector<std::string> begun, done;
    options.on_progress = [&](const SuiteProgress& now) {
      (now.begins ? begun : done).push_back(now.problem);
      EXPECT_EQ(now.done, done.size());
      EXPECT_EQ(now.total, 3U);
    };
    std::atomic<int> calls = 0;
    std::vector<CheckCase> marked = cases;
    marked[1].seed = 77;
    const SuiteReport report =
        run_suite(marked, options, [&](const AttentionProblem& problem, const CheckOptions& check_options) {
          ++calls;
          if (check_options.seed == 77) throw std::runtime_error("the device has gone");
          return check(problem, check_options);
        });
    EXPECT_EQ(std::set<std::string>(begun.begin(), begun.end()).size(), 3U);
    EXPECT_EQ(std::set<std::string>(done.begin(), done.end()).size(), 3U);
    ASSERT_EQ(report.results.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(report.results[i].name, cases[i / 2].name);
    EXPECT_EQ(report.count(SuiteVerdict::kError), 2U);
    EXPECT_EQ(report.count(SuiteVerdict::kRight), 4U);
    EXPECT_EQ(report.results[2].reasons, std::vector<std::string>{"the device has gone"});
    EXPECT_EQ(report.results[3].reasons, std::vector<std::string>{"the device has gone"});
  }
}

TEST(SuiteRun, NothingComparedIsNotRight) {
  const auto results = run_case(small_case(), {}, [](const AttentionProblem&, const CheckOptions&) {
    CheckReport report;
    report.outputs.push_back({"o", {}, {}, 0, 0, {}});
    return report;
  });
  EXPECT_EQ(verdicts(results), (std::vector{SuiteVerdict::kRight, SuiteVerdict::kError}));
}

TEST(SuiteRun, AnErrorKeepsItsKind) {
  const auto results = run_case(small_case(), {}, [](const AttentionProblem&, const CheckOptions&) -> CheckReport {
    fail_environment("out of memory");
  });
  EXPECT_EQ(verdicts(results), (std::vector{SuiteVerdict::kError, SuiteVerdict::kError}));
  EXPECT_EQ(results[0].reasons, std::vector<std::string>{"environment: out of memory"});
}

}  // namespace
}  // namespace scoremod::checking
