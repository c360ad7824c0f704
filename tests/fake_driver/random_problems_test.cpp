// Random problems of all options on a fake device: each kernel's text compiles, and each launch keeps to CUDA's rules.
#include "scoremod/check.hpp"
#include "scoremod/check_suite.hpp"

#include "fake_driver/fake_device.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

/// NVRTC takes seconds for each.
constexpr int kProblems = 8;

using RandomProblems = test::OnFakeDevice;

TEST_F(RandomProblems, AreRunOrRefused) {
  CheckSuiteOptions options;
  options.compile.backend = "kernels";
  options.compile.device = test::fake_device("h200");
  options.compile.new_sizes = NewSizes::kWait;
  options.random_problems = kProblems;
  options.seed = test::test_seed();
  options.filter = "random/";
  options.threads = 1;
  test::fake_cuda::take_launches();
  const SuiteReport report = check_suite(options);
  // The device computes nothing, so that nearly all outputs are wrong.
  for (const SuiteResult& result : report.results) {
    EXPECT_NE(result.verdict, SuiteVerdict::kError)
        << "SCOREMOD_TEST_SEED=" << *options.seed << ", " << result.name << ": " << result.reasons.front();
  }
  EXPECT_GE(report.results.size(), static_cast<std::size_t>(kProblems));
  EXPECT_LT(report.count(SuiteVerdict::kRefused), report.results.size());
  EXPECT_GE(test::fake_cuda::take_launches().size(), report.count(SuiteVerdict::kWrong));
}

TEST_F(RandomProblems, AreCheckedOnTheDeviceThatTheyAreFor) {
  CheckOptions options;
  options.compile.backend = "kernels";
  options.compile.device = 1;
  const CheckReport report = check(test::small_problem("value = score", DType::kBF16, 64), options);
  EXPECT_EQ(report.backend, "kernels");
}

}  // namespace
}  // namespace scoremod
