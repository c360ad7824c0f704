// Whatever steps run, a compiled problem keeps the same keys with the same values, bit for bit.
#include "compiler/pipeline.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "base/fail.hpp"
#include "check/random_program.hpp"
#include "support/interpreter.hpp"
#include "support/problem_for.hpp"
#include "support/test_seed.hpp"

namespace scoremod::test {
namespace {

constexpr int kPrograms = 250;
constexpr int kElements = 24;

AttentionProblem problem_with(const Program& program) {
  AttentionProblem sizes;
  sizes.batch = 2;
  sizes.heads_q = sizes.heads_kv = 3;
  sizes.seq_q = 40;
  sizes.seq_kv = 50;
  sizes.backward = sizes.stats = true;
  return problem_for(program, sizes);
}

/// An element within the problem, whose score and operands are special values one time in four.
Element<float> random_element(std::uint64_t seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  static constexpr std::array kSpecial{0.0f, -0.0f, 1.0f, kInf, -kInf, std::numeric_limits<float>::quiet_NaN()};
  std::mt19937_64 random(seed);
  const auto real = [](std::mt19937_64& from) {
    const std::uint64_t word = from();
    if (word % 4 == 0) return kSpecial[(word >> 8) % kSpecial.size()];
    return static_cast<float>(static_cast<double>(word >> 11) * 0x1p-50 - 4);
  };
  Element<float> element;
  element.score = real(random);
  element.upstream = real(random);
  element.b = static_cast<std::int32_t>(random() % 2);
  element.h = static_cast<std::int32_t>(random() % 3);
  element.q = static_cast<std::int32_t>(random() % 40);
  element.kv = static_cast<std::int32_t>(random() % 50);
  element.read = [=](std::uint32_t operand, std::span<const std::int32_t> indices) {
    std::uint64_t what = seed * 31 + operand;
    for (const std::int32_t index : indices) what = what * 6364136223846793005ull + static_cast<std::uint32_t>(index);
    std::mt19937_64 of_entry(what);
    ir::Scalar<float> out;
    out.f = real(of_entry);
    out.i = static_cast<std::int32_t>(of_entry() % 64);
    out.b = out.i % 2 != 0;
    return out;
  };
  return element;
}

/// Attention's view of a key: its value's bits, or that it is dropped.
std::string seen(const Program& program, const Element<float>& element) {
  const auto values = interpret(program, element);
  const float value = values[program.value()].f;
  const bool keep = program.keep() == kNoNode || values[program.keep()].b;
  if (!keep || value == -std::numeric_limits<float>::infinity()) return "dropped";
  return std::isnan(value) ? "nan" : concat(value, " ", std::bit_cast<std::uint32_t>(value));
}

TEST(PipelineProperty, WhatAttentionSeesDoesNotDependOnTheSteps) {
  for (int i = 0; i < kPrograms; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    checking::RandomProgramOptions random_options;
    random_options.continuity = checking::Continuity::kAny;
    random_options.tame = seed % 2 == 0;
    random_options.infinity_mask_probability = 0.5;
    std::mt19937_64 random(seed);
    const AttentionProblem problem = problem_with(checking::random_program(random, random_options));
    std::vector<std::vector<std::string>> disabled{{}, compiler::step_names()};
    for (const std::string& name : compiler::step_names()) disabled.push_back({name});
    for (const auto& names : disabled) {
      compiler::PipelineOptions options;
      options.disabled = names;
      const auto compiled = compiler::compile(problem, options);
      for (std::uint64_t element = 0; element < kElements; ++element) {
        const Element<float> at = random_element(seed * kElements + element);
        const std::string expected = seen(problem.program, at);
        ASSERT_EQ(seen(compiled.forward.program, at), expected)
            << "seed " << seed << ", without " << (names.empty() ? "nothing" : names.front()) << "\n"
            << problem.program.to_string() << "became\n"
            << compiled.forward.program.to_string();
        ASSERT_EQ(seen(compiled.backward->program, at), expected) << "seed " << seed << "\n"
                                                                  << compiled.backward->program.to_string();
      }
    }
  }
}

}  // namespace
}  // namespace scoremod::test
