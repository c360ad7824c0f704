// Derivatives of random programs and of the zoo, held against finite differences.
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "autodiff/differentiate.hpp"
#include "check/random_program.hpp"
#include "ir/builder.hpp"
#include "passes/drop_surrogates.hpp"
#include "passes/normalize_mask.hpp"
#include "passes/share.hpp"
#include "passes/simplify.hpp"
#include "support/gradient_check.hpp"
#include "support/test_seed.hpp"

namespace scoremod::test {
namespace {

constexpr int kPrograms = 600;
constexpr int kPoints = 3;

/// The derivative as the compiler makes it.
Program compiled_derivative(const Program& program) {
  return passes::share(passes::simplify(autodiff::differentiate(program)));
}

void add(GradientReport& total, const GradientReport& one) {
  total.compared += one.compared;
  total.skipped += one.skipped;
  if (total.mismatch.empty()) total.mismatch = one.mismatch;
}

GradientReport check_random_programs(checking::Continuity continuity, Program (*derive)(const Program&)) {
  GradientReport total;
  for (int i = 0; i < kPrograms; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    checking::RandomProgramOptions options;
    options.continuity = continuity;
    std::mt19937_64 random(seed);
    const Program program = checking::random_program(random, options);
    // Whose derivative is said to be another than that of the value.
    if (passes::has_surrogates(program)) continue;
    const Program derivative = derive(program);
    std::mt19937 points(static_cast<unsigned>(seed));
    for (int point = 0; point < kPoints; ++point) {
      GradientReport one = check_gradient(program, derivative, random_point(program, points, -2, 2));
      if (!one.mismatch.empty()) one.mismatch = "seed " + std::to_string(seed) + ": " + one.mismatch;
      add(total, one);
    }
  }
  return total;
}

TEST(ProgramGradient, SmoothRandomProgramsMatchFiniteDifferences) {
  const GradientReport report = check_random_programs(checking::Continuity::kSmooth, autodiff::differentiate);
  EXPECT_EQ(report.mismatch, "");
  EXPECT_GT(report.compared, 10 * report.skipped);
  EXPECT_GT(report.compared, kPrograms * kPoints);
}

TEST(ProgramGradient, TheCompilersDerivativeMatchesFiniteDifferences) {
  const GradientReport report = check_random_programs(checking::Continuity::kAny, compiled_derivative);
  EXPECT_EQ(report.mismatch, "");
  EXPECT_GT(report.compared, 3 * report.skipped);
}

/// Every modifier of the zoo that can be made from its defaults.
struct ZooCase {
  std::string name;
  Program program;
};

std::vector<ZooCase> zoo_cases() {
  zoo::Sizes sizes;
  sizes.batch = sizes.heads = kTableExtent;
  sizes.seq_q = sizes.seq_kv = 12;
  const std::map<std::string, zoo::Value, std::less<>> values{{"cap", 5.0},
                                                              {"window", std::int64_t{3}},
                                                              {"prefix", std::int64_t{3}},
                                                              {"max_distance", std::int64_t{4}},
                                                              {"scale", 0.25},
                                                              {"num_buckets", std::int64_t{4}},
                                                              {"dilation", std::int64_t{2}},
                                                              {"width", std::int64_t{4}},
                                                              {"radius_x", std::int64_t{1}},
                                                              {"radius_y", std::int64_t{1}},
                                                              {"global_tokens", std::int64_t{2}}};
  std::vector<ZooCase> cases;
  for (const zoo::Entry& entry : zoo::entries()) {
    zoo::Parameters parameters;
    for (const zoo::Parameter& parameter : entry.parameters) {
      const auto found = values.find(parameter.name);
      if (found != values.end()) parameters[parameter.name] = found->second;
    }
    const zoo::Modifier modifier = zoo::make(entry.name, parameters, sizes);
    cases.push_back({entry.name, zoo::combine(std::span(&modifier, 1)).program});
  }
  return cases;
}

GradientReport check_zoo(const Program& program, const Program& derivative) {
  GradientReport total;
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) add(total, check_gradient(program, derivative, random_point(program, random, 0.25, 3)));
  return total;
}

TEST(ProgramGradient, EveryZooModifierMatchesFiniteDifferences) {
  for (const ZooCase& one : zoo_cases()) {
    const Program program = passes::normalize_mask(one.program);
    const GradientReport report = check_zoo(program, compiled_derivative(program));
    EXPECT_EQ(report.mismatch, "") << one.name;
    EXPECT_GE(report.compared, 60) << one.name;
    EXPECT_EQ(report.skipped, 0) << one.name;
  }
}

/// The derivative with one adjoint replaced: by zero, or by the upstream as it is.
Program with_adjoint(const Program& derivative, std::size_t root, bool zero) {
  ir::Builder builder;
  for (const OperandDecl& decl : derivative.operands()) builder.declare(decl);
  for (const Node& node : derivative.nodes()) builder.remake(node, ir::args_of(node));
  std::vector<Root> roots = derivative.roots();
  roots[root].node = zero ? builder.constant(0.0f) : builder.leaf(Op::kUpstream);
  return builder.finish(roots);
}

TEST(ProgramGradient, AWrongAdjointOfAnyZooModifierIsFound) {
  int identities = 0;
  for (const ZooCase& one : zoo_cases()) {
    const Program derivative = autodiff::differentiate(one.program);
    for (std::size_t i = 0; i < derivative.roots().size(); ++i) {
      if (derivative.roots()[i].kind < RootKind::kScoreAdjoint) continue;
      EXPECT_NE(check_zoo(one.program, with_adjoint(derivative, i, true)).mismatch, "") << one.name << ", root " << i;
      const Program identity = with_adjoint(derivative, i, false);
      if (identity == derivative) continue;
      ++identities;
      EXPECT_NE(check_zoo(one.program, identity).mismatch, "") << one.name << ", root " << i;
    }
  }
  EXPECT_GE(identities, 3) << "the soft cap's and the temperature's derivatives are no identities";
}

}  // namespace
}  // namespace scoremod::test
