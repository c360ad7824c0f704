#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/compile_ahead.hpp"
#include "scoremod/explain.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// A device's properties, of which there is none on most machines that run this test.
std::string device(int compute_capability) {
  return R"({"deviceVer":)" + std::to_string(compute_capability * 10) +
         R"(,"multiProcessorCount":132,"maxSharedMemoryPerBlockOptin":232448,"deviceName":"A GPU","l2CacheSize":62914560,
           "totalGlobalMem":150109880320,"clockRate":1980000,"memoryClockRate":3201000,"memoryBusWidth":6144})";
}

AttentionProblem bf16_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 512;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  problem.program = Program::parse("value = score\nkeep = q_idx >= kv_idx");
  return problem;
}

Support answer_of(const std::vector<Support>& answers, const std::string& backend) {
  const auto found = std::ranges::find(answers, backend, &Support::backend);
  return found == answers.end() ? Support{} : *found;
}

std::vector<Support> static_answers(const AttentionProblem& problem, int compute_capability) {
  return support_elsewhere(problem, device(compute_capability), {}, SupportLevel::kStatic);
}

TEST(SupportElsewhere, IsThatOfTheDevicesFamily) {
  const auto of_hopper = answer_of(static_answers(bf16_problem(), 90), "kernels");
  if (of_hopper.backend.empty()) GTEST_SKIP() << "built without a backend of a device";
  EXPECT_TRUE(of_hopper.supported) << of_hopper.reasons.front().text;
  const auto of_volta = answer_of(static_answers(bf16_problem(), 70), "kernels");
  ASSERT_FALSE(of_volta.supported);
  EXPECT_TRUE(std::ranges::any_of(of_volta.reasons, [](const UnsupportedReason& reason) {
    return reason.text.find("7.0") != std::string::npos;
  })) << of_volta.reasons.front().text;
  for (const UnsupportedReason& reason : of_volta.reasons) EXPECT_NE(reason.id, "no_device");
}

TEST(SupportElsewhere, OfTheHostIsThatOfThisMachine) {
  const auto here = support(bf16_problem(), {}, SupportLevel::kStatic), elsewhere = static_answers(bf16_problem(), 90);
  for (const char* backend : {"cpu", "reference"}) {
    EXPECT_TRUE(answer_of(elsewhere, backend).supported) << backend;
    EXPECT_EQ(answer_of(elsewhere, backend).notes, answer_of(here, backend).notes) << backend;
  }
}

TEST(SupportElsewhere, AsksTheBackendsThatTheOptionsName) {
  CompileOptions options;
  options.backends = {"cpu"};
  const auto answers = support_elsewhere(bf16_problem(), device(90), options, SupportLevel::kStatic);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers.front().backend, "cpu");
}

TEST(SupportElsewhere, RefusesATextThatIsNoDevices) {
  test::expect_refusal("device", [] { support_elsewhere(bf16_problem(), "{}", {}, SupportLevel::kStatic); });
  ExplainOptions options;
  options.device_properties = "H100";
  test::expect_refusal("device", [&] { explain(bf16_problem(), options); });
}

}  // namespace
}  // namespace scoremod
