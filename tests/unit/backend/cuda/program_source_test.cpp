#include "backend/cuda/text/program_source.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "backend/cuda/text/kernel_text.hpp"
#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"
#include "check/random_program.hpp"
#include "problem/tensor_view.hpp"
#include "support/host_library.hpp"
#include "support/interpreter.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr int kPrograms = 250;
constexpr int kElements = 40;

/// A problem that binds a program's operands to tensors of every dtype, padded strides among them.
AttentionProblem problem_of(const Program& program, std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 3;
  problem.heads_kv = 3;
  problem.seq_q = 5;
  problem.seq_kv = 7;
  problem.program = program;
  const std::array<std::int64_t, kAxisCount> sizes{problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv};
  for (const OperandDecl& decl : program.operands()) {
    static constexpr std::array kFloats{DType::kF32, DType::kF16, DType::kBF16};
    OperandSpec spec;
    spec.name = decl.name;
    spec.dtype = decl.type == Type::kF32   ? kFloats[static_cast<std::size_t>(below(3))]
                 : decl.type == Type::kI32 ? DType::kI32
                                           : DType::kBool;
    for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
      if (decl.axes[axis]) spec.shape.push_back(sizes[axis]);
    }
    for (int d = 0; d < decl.table_rank; ++d) spec.shape.push_back(1 + below(4));
    if (below(2) == 0) {
      std::int64_t stride = 1 + below(2);
      spec.strides.resize(spec.shape.size());
      for (std::size_t d = spec.shape.size(); d-- > 0;) {
        spec.strides[d] = stride;
        stride *= spec.shape[d] + below(2);
      }
    }
    problem.operands.push_back(spec);
  }
  return problem;
}

float special_float(std::mt19937_64& random) {
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr std::array kSpecial{
      0.0f,           -0.0f,    1.0f,      -1.0f,      0.5f,
      2.5f,           3.5f,     kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
      1e-42f,         -3e38f,   88.8f,     -104.0f,    2147483648.0f,
      -2147483648.0f, 65504.0f, 7.0f};
  if (random() % 2 == 0) return kSpecial[random() % kSpecial.size()];
  return static_cast<float>(static_cast<double>(random() % 2000001) / 1e5 - 10);
}

std::vector<std::byte> operand_data(const OperandSpec& spec, std::mt19937_64& random) {
  std::int64_t last = 0;
  const auto strides = problem::strides_of(spec);
  for (std::size_t d = 0; d < spec.shape.size(); ++d) last += (spec.shape[d] - 1) * strides[d];
  std::vector<std::byte> bytes(static_cast<std::size_t>(last + 1) * size_of(spec.dtype));
  for (std::int64_t i = 0; i <= last; ++i) {
    if (is_floating(spec.dtype))
      store_element(bytes.data(), spec.dtype, i, static_cast<double>(special_float(random)));
    else if (spec.dtype == DType::kI32)
      store_element(bytes.data(), spec.dtype, i,
                    random() % 4 == 0 ? std::numeric_limits<std::int32_t>::min()
                                      : static_cast<std::int32_t>(random() % 200) - 100);
    else
      bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(random() % 3 == 0 ? 0 : random() % 256);
  }
  return bytes;
}

/// "program_I": computes every node of a program at one element, into `floats` or `ints` by its type.
std::string function_text(const AttentionProblem& problem, const Program& program, int number) {
  ProgramSource source(problem, program);
  std::vector<NodeId> all(program.nodes().size());
  std::iota(all.begin(), all.end(), NodeId{0});
  const std::string statements = source.statements(all);
  std::string text = concat("extern \"C\" void program_", number,
                            "(float score, float upstream, const int* at, const void* const* operands, float* floats, "
                            "int* ints) {\nconst int b = at[0], h = at[1], q = at[2], kv = at[3], offset_b = at[4], "
                            "offset_h = at[5], offset_q = at[6], offset_kv = at[7];\n");
  for (const std::uint32_t operand : source.operands()) {
    text += concat("const void* ", ProgramSource::operand_name(operand), " = operands[", operand, "];\n");
  }
  text += statements;
  for (const NodeId node : all) {
    text += concat(program.nodes()[node].type == Type::kF32 ? "floats[" : "ints[", node,
                   "] = ", ProgramSource::variable(node), ";\n");
  }
  return text + "}\n";
}

using Function = void (*)(float, float, const int*, const void* const*, float*, int*);

struct Case {
  AttentionProblem problem;
  std::vector<std::vector<std::byte>> data;
  std::uint64_t seed = 0;
};

/// A quotient by a constant may miss a unit if it or its dividend is so small that the remainder is subnormal, and so
/// may its dependents.
bool is_near_small_quotient(const Program& program, const Node& node, std::span<const ir::Scalar<float>> expected,
                            float found, float quotient) {
  if (node.op != Op::kDiv || program.nodes()[node.args[1]].op != Op::kConstant || found == quotient) return false;
  const bool is_small =
      std::fabs(quotient) <= std::numeric_limits<float>::min() || std::fabs(expected[node.args[0]].f) < 0x1p-102f;
  return is_small && std::nextafter(found, quotient) == quotient;
}

/// Compares every node at one random element with the interpreter, bit for bit but for NaN.
void expect_same(const Case& test, Function function, std::mt19937_64& random) {
  const Program& program = test.problem.program;
  std::vector<const void*> pointers;
  for (const auto& bytes : test.data) pointers.push_back(bytes.data());
  const std::vector<reference::OperandView> views = reference::view_operands(test.problem, pointers);
  const std::array<std::int64_t, kAxisCount> sizes{test.problem.batch, test.problem.heads_q, test.problem.seq_q,
                                                   test.problem.seq_kv};
  std::array<int, 8> at{};
  for (std::size_t i = 0; i < kAxisCount; ++i) {
    at[i] = static_cast<int>(random() % static_cast<std::uint64_t>(sizes[i]));
    at[i + 4] = random() % 2 == 0 ? 0 : static_cast<int>(random() % 1000);
  }
  test::Element<float> element{
      special_float(random), special_float(random), at[0] + at[4], at[1] + at[5], at[2] + at[6], at[3] + at[7], {}};
  element.read = [&](std::uint32_t operand, std::span<const std::int32_t> table_indices) {
    const reference::OperandView& view = views[operand];
    std::vector<std::int64_t> indices(table_indices.begin(), table_indices.end());
    for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
      if (view.decl.axes[axis]) indices.push_back(at[axis]);
    }
    const std::int64_t offset = view.offset(view.dense_index(indices));
    ir::Scalar<float> out;
    switch (view.decl.type) {
      case Type::kF32: out.f = load_element<float>(view.data, view.dtype, offset); break;
      case Type::kI32: out.i = load_element<std::int32_t>(view.data, view.dtype, offset); break;
      case Type::kBool: out.b = load_element<bool>(view.data, view.dtype, offset); break;
    }
    return out;
  };
  const std::vector<ir::Scalar<float>> expected = test::interpret(program, element);
  std::vector<float> floats(expected.size());
  std::vector<int> ints(expected.size());
  function(element.score, element.upstream, at.data(), pointers.data(), floats.data(), ints.data());
  for (std::size_t node = 0; node < expected.size(); ++node) {
    const std::string where = concat("seed ", test.seed, ", n", node, " of\n", program.to_string());
    switch (program.nodes()[node].type) {
      case Type::kF32:
        if (is_near_small_quotient(program, program.nodes()[node], expected, floats[node], expected[node].f)) return;
        if (std::isnan(expected[node].f)) {
          ASSERT_TRUE(std::isnan(floats[node])) << floats[node] << " at " << where;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[node]), std::bit_cast<std::uint32_t>(expected[node].f))
              << floats[node] << " instead of " << expected[node].f << " at " << where;
        }
        break;
      case Type::kI32: ASSERT_EQ(ints[node], expected[node].i) << where; break;
      case Type::kBool: ASSERT_EQ(ints[node] != 0, expected[node].b) << where; break;
    }
  }
}

TEST(ProgramSource, MeansWhatTheInterpreterMeans) {
  std::vector<Case> cases;
  std::string text(file_text("backend/cuda/text/program_prelude.cuh"));
  for (int i = 0; i < kPrograms; ++i) {
    Case test;
    test.seed = test::test_seed() + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(test.seed);
    checking::RandomProgramOptions options;
    options.tame = i % 2 == 0;
    options.continuity = checking::Continuity::kAny;
    options.adjoint_roots = true;
    test.problem = problem_of(checking::random_program(random, options), random);
    for (const OperandSpec& spec : test.problem.operands) test.data.push_back(operand_data(spec, random));
    text += function_text(test.problem, test.problem.program, i);
    cases.push_back(std::move(test));
  }
  const test::HostLibrary library(text);
  for (int i = 0; i < kPrograms; ++i) {
    std::mt19937_64 random(cases[static_cast<std::size_t>(i)].seed + 1);
    for (int element = 0; element < kElements && !HasFatalFailure(); ++element) {
      expect_same(cases[static_cast<std::size_t>(i)], library.function<Function>(concat("program_", i)), random);
    }
  }
}

/// By constants that are powers of two, other positive ones, and the rest; of the smallest number, too.
TEST(ProgramSource, DividesByConstantsRoundingDown) {
  std::string sum = "0";
  for (const char* divisor : {"1", "2", "64", "7", "1073741824", "2147483647", "-3"})
    sum += concat(" - (x // ", divisor, " + x % ", divisor, " * 3)");
  Case test;
  test.seed = test::test_seed();
  std::mt19937_64 random(test.seed);
  test.problem =
      problem_of(Program::parse(concat("operand x: i32 [h, q_idx, kv_idx]\nvalue = score + f32(", sum, ")")), random);
  test.data.push_back(operand_data(test.problem.operands.front(), random));
  const test::HostLibrary library(
      concat(file_text("backend/cuda/text/program_prelude.cuh"), function_text(test.problem, test.problem.program, 0)));
  for (int element = 0; element < 10 * kElements && !HasFatalFailure(); ++element)
    expect_same(test, library.function<Function>("program_0"), random);
}

/// Programs may round down multiples of a divisor, so all are tried: with constants of all signs and sizes, and every
/// mantissa of one.
TEST(ProgramSource, DividesFloatsByConstantsAsTheOperatorDoes) {
  const test::HostLibrary library(
      concat(file_text("backend/cuda/text/program_prelude.cuh"),
             "extern \"C\" float divide(float x, float y) { return f32_divide_by(x, y, 1.0f / "
             "y); }\n"),
      "-O2");
  const auto divide = library.function<float (*)(float, float)>("divide");
  std::mt19937_64 random(test::test_seed());
  std::vector<float> divisors{50.0f, 30.0f, 49.0f, 3.0f, 7.0f, 10.0f, 0.1f, 1e-20f, 1e20f, 0x1.fffffep+0f, 1.0f};
  for (int i = 0; i < 200; ++i)
    divisors.push_back(
        std::ldexp(1.0f + static_cast<float>(random() % (1u << 23)) * 0x1p-23f, static_cast<int>(random() % 60) - 30));
  for (const float divisor : divisors) {
    for (std::uint32_t i = 0; i < 20'000; ++i) {
      const float x = i % 2 == 0 ? static_cast<float>(i / 2) * divisor
                                 : std::ldexp(1.0f + static_cast<float>(random() % (1u << 23)) * 0x1p-23f,
                                              static_cast<int>(random() % 40) - 20);
      ASSERT_EQ(divide(x, divisor), x / divisor) << x << " / " << divisor << ", seed " << test::test_seed();
      ASSERT_EQ(divide(-x, divisor), -x / divisor);
    }
    for (const float x : {0.0f, -0.0f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
      ASSERT_EQ(std::bit_cast<std::uint32_t>(divide(x, divisor)), std::bit_cast<std::uint32_t>(x / divisor)) << x;
    ASSERT_TRUE(std::isnan(divide(std::numeric_limits<float>::quiet_NaN(), divisor)));
    // The remainder of a dividend below 2^-102 is subnormal. Where it is lost, what is left is the rounding of the
    // reciprocal and of the product by it: the quotient may miss two units, but no more.
    for (std::uint32_t i = 0; i < 20'000; ++i) {
      const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random() % 0x0c800000u)), right = x / divisor;
      const float one_nearer = std::nextafter(divide(x, divisor), right);
      ASSERT_EQ(std::nextafter(one_nearer, right), right) << x << " / " << divisor << ", seed " << test::test_seed();
    }
  }
  for (std::uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    const float x = std::bit_cast<float>(0x3f800000u + mantissa);
    ASSERT_EQ(divide(x, 50.0f), x / 50.0f) << x;
  }
}

/// Each 509th of all floats.
TEST(ProgramSource, ShortTanhOfKernelsMissesLittleAbsolutely) {
  const test::HostLibrary library(
      concat(file_text("backend/cuda/text/program_prelude.cuh"),
             "extern \"C\" float tanh_short(float x) { return f32_tanh_by_exponential(x); }\n"),
      "-O2");
  const auto tanh_short = library.function<float (*)(float)>("tanh_short");
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 509) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits)), found = tanh_short(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(found));
      continue;
    }
    ASSERT_LE(std::fabs(found), 1.0f) << x;
    // The hardware's power of two misses as much again.
    ASSERT_NEAR(static_cast<double>(found), std::tanh(static_cast<double>(x)), 0x1p-22) << x;
  }
}

TEST(ProgramSource, WritesOnlyHalvesScoresByTheShortTanh) {
  AttentionProblem problem;
  problem.program = Program::parse("value = tanh(score)");
  const NodeId value = problem.program.value();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    problem.dtype = dtype;
    const std::string text = ProgramSource(problem, problem.program).statements(std::span(&value, 1));
    EXPECT_EQ(text.find("f32_tanh_short(") != std::string::npos, dtype != DType::kF32) << text;
  }
}

TEST(ProgramSource, WritesFloatsThatReadBackExactly) {
  EXPECT_EQ(float_literal(0.1f), "0x1.99999ap-4f");
  EXPECT_EQ(float_literal(-0.0f), "(-0x0p+0f)");
  EXPECT_EQ(float_literal(1e-45f), "0x1p-149f");
  EXPECT_EQ(float_literal(-std::numeric_limits<float>::infinity()), "float_of_bits(4286578688u)");
}

TEST(ProgramSource, WritesOnlyWhatIsNeededAndNothingTwice) {
  AttentionProblem problem;
  problem.program = Program::parse("operand x: f32 [h]\nvalue = score * x + tanh(score)\nkeep = q_idx >= kv_idx");
  problem.operands = {{"x", DType::kBF16, {1}, {}}};
  ProgramSource source(problem, problem.program);
  const NodeId keep = problem.program.keep(), value = problem.program.value();
  const std::string first = source.statements(std::span(&keep, 1));
  EXPECT_EQ(first.find("score"), std::string::npos) << first;
  EXPECT_TRUE(source.operands().empty());
  const std::string second = source.statements(std::span(&value, 1));
  EXPECT_EQ(second.find(ProgramSource::variable(keep) + " ="), std::string::npos) << second;
  EXPECT_EQ(source.operands(), std::set<std::uint32_t>{0});
  EXPECT_EQ(source.statements(std::span(&value, 1)), "");
}

}  // namespace
}  // namespace scoremod::backend::cuda
