// NVRTC compiles kernels without a GPU, so whatever can load NVRTC holds the generators to it.

#include <cstring>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"
#include "scoremod/zoo.hpp"

#include "backend/cuda/compute/compute_source.hpp"
#include "backend/cuda/device/library.hpp"
#include "backend/cuda/float8/float8_conversions.hpp"
#include "backend/cuda/modules/runtime_compiler.hpp"
#include "backend/cuda/operand_gradients/gradient_source.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "device/device_cases.hpp"
#include "problem/tensor_view.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr int kRandomProblems = 40;

class GeneratedKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (nvrtc_library().handle == nullptr) GTEST_SKIP() << "no NVRTC: " << nvrtc_library().reason;
  }

  /// Both generators, for everything that this problem gives them.
  static void expect_compiles(const AttentionProblem& problem, int compute_capability) {
    const compiler::CompiledProblem compiled = compiler::compile(problem);
    const std::vector<NodeTensor> tensors = test::score_free_tensors(compiled.forward.program);
    std::string text = compute_source(problem, compiled.forward.program, tensors).text;
    if (compiled.backward) {
      const auto targets = gradient_targets(compiled, problem::operands_with_gradient(problem));
      const std::string gradients = gradient_source(compiled, targets).text;
      EXPECT_FALSE(compile_kernels(gradients, compute_capability).empty());
    }
    const std::string image = compile_kernels(text, compute_capability);
    EXPECT_EQ(std::memcmp(image.data(), "\177ELF", 4), 0) << "no machine code for the architecture";
  }
};

TEST_F(GeneratedKernels, OfEveryZooEntryCompile) {
  int number = 0;
  for (const zoo::Entry& entry : zoo::entries()) {
    SCOPED_TRACE(entry.name);
    AttentionProblem problem = test::zoo_problem(entry.name, number, DType::kBF16).problem;
    expect_compiles(problem, number % 2 == 0 ? 80 : 90);
    problem.deterministic = true;
    expect_compiles(problem, number % 2 == 0 ? 80 : 90);
    ++number;
  }
}

TEST_F(GeneratedKernels, OfTheOtherDeviceTestsCompile) {
  for (int i = 0; i < test::kAxesProblems; ++i) {
    AttentionProblem problem = test::axes_problem(i, i % 2 == 0).problem;
    problem.deterministic = i % 3 == 0;
    expect_compiles(problem, 90);
  }
  for (int i = 0; i < test::kLongProblems; ++i) expect_compiles(test::long_problem(i).problem, 80);
  for (const checking::CheckCase& timed : test::timed_problems()) expect_compiles(timed.problem, 90);
}

TEST_F(GeneratedKernels, OfRandomProblemsCompile) {
  for (int i = 0; i < kRandomProblems; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE(seed);
    expect_compiles(checking::random_problem(seed).problem, i % 2 == 0 ? 80 : 90);
  }
}

TEST_F(GeneratedKernels, OfFloat8ConversionsCompile) {
  for (const int compute_capability : {80, 90, 100})
    EXPECT_FALSE(compile_kernels(float8_conversion_source(), compute_capability).empty());
}

TEST_F(GeneratedKernels, OfANewerArchitectureThanNvrtcKnowsArePtx) {
  const std::string image = compile_kernels("extern \"C\" __global__ void nothing() {}", 990);
  EXPECT_NE(image.find(".version"), std::string::npos);
}

/// With a driver NVRTC may find the kernels in the driver's cache, and then has no report of ptxas.
TEST_F(GeneratedKernels, AreReportedOnHoweverOftenTheyAreCompiled) {
  for (int i = 0; i < 3; ++i) {
    std::string report;
    compile_kernels("extern \"C\" __global__ void reported(float* x) { x[0] = 1; }", 90, &report);
    EXPECT_NE(report.find("registers"), std::string::npos) << "compiled " << i << " times before: " << report;
  }
}

TEST_F(GeneratedKernels, ThatAreWrongAreABugWithTheCompilersLog) {
  try {
    compile_kernels("extern \"C\" __global__ void wrong() { undeclared = 1; }", 90);
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBug);
    EXPECT_NE(std::string(error.what()).find("undeclared"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace scoremod::backend::cuda
