#include "backend/cpu/strip.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "ir/op_table.hpp"
#include "ir/scalar_eval.hpp"

namespace scoremod::backend::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr auto kMinInt = std::numeric_limits<std::int32_t>::min();

using Lanes = std::vector<float>;

Lanes float_grid() {
  Lanes grid{0.0f,   -0.0f,   1.0f,          -1.0f,          0.5f,          -0.5f,   1.5f,    2.5f,   -2.5f,
             3.0f,   -7.0f,   1e-40f,        -1e-40f,        1e-7f,         -1e-7f,  3e-4f,   -3e-4f, 0.3f,
             -0.3f,  9.5f,    -9.5f,         20.0f,          -20.0f,        87.2f,   -87.2f,  88.8f,  -88.8f,
             103.0f, -103.9f, 126.5f,        -126.5f,        40000.0f,      -1e9f,   1e30f,   -1e30f, kInf,
             -kInf,  kNan,    2147483648.0f, -2147483648.0f, 2147483520.0f, 3.4e38f, -3.4e38f};
  std::mt19937 bits(7);
  for (int i = 0; i < 400; ++i) {
    const float exponent = static_cast<float>(bits() % 2400) / 100.0f - 16.0f;
    const float sign = (bits() & 1u) != 0 ? 1.0f : -1.0f;
    grid.push_back(sign * std::exp2(exponent));
  }
  return grid;
}

Lanes int_grid() {
  std::vector<std::int32_t> values{0,  1,   -1,   2,     -2,       3,       -3,      7,          -7,
                                   10, 100, -100, 65536, 16777217, kMaxInt, kMinInt, kMinInt + 1};
  std::mt19937 bits(8);
  for (int i = 0; i < 60; ++i) values.push_back(static_cast<std::int32_t>(bits()));
  Lanes lanes(values.size());
  std::memcpy(lanes.data(), values.data(), values.size() * 4);
  return lanes;
}

Lanes bool_grid() { return {std::bit_cast<float>(0), std::bit_cast<float>(-1), std::bit_cast<float>(-1)}; }

Lanes grid_of(Type type) { return type == Type::kF32 ? float_grid() : type == Type::kI32 ? int_grid() : bool_grid(); }

template <class Real>
ir::Scalar<Real> scalar_of(float lane, Type type) {
  ir::Scalar<Real> scalar;
  if (type == Type::kF32)
    scalar.f = static_cast<Real>(lane);
  else if (type == Type::kI32)
    scalar.i = std::bit_cast<std::int32_t>(lane);
  else
    scalar.b = std::bit_cast<std::int32_t>(lane) != 0;
  return scalar;
}

/// Every combination of the arguments' grids, thinned where there are too many.
std::vector<Lanes> combinations(const std::vector<Type>& types) {
  std::vector<Lanes> args(types.size());
  std::vector<Lanes> grids;
  std::size_t total = 1;
  for (const Type type : types) grids.push_back(grid_of(type));
  for (const Lanes& grid : grids) total *= grid.size();
  const std::size_t step = total > 40000 ? 7 : 1;
  for (std::size_t i = 0; i < total; i += step) {
    std::size_t rest = i;
    for (std::size_t k = 0; k < grids.size(); ++k) {
      args[k].push_back(grids[k][rest % grids[k].size()]);
      rest /= grids[k].size();
    }
  }
  return args;
}

/// The distance in units of the last place of the f32 nearest to `exact`.
double ulps(double got, double exact) {
  const float nearest = std::abs(static_cast<float>(exact));
  const float above = std::nextafter(nearest, kInf);
  const double unit = std::isfinite(above) ? double{above} - double{nearest} : 2.03e31;
  return std::abs(got - exact) / unit;
}

/// Runs one op over all lanes with the arguments that `broadcast` names held in one value, and returns the results.
Lanes run_op(Op op, Type type, const std::vector<Type>& types, const std::vector<Lanes>& args, std::size_t length) {
  Instruction instruction;
  instruction.op = op;
  instruction.type = type;
  instruction.arg_type = types[0];
  instruction.arg_count = static_cast<std::uint8_t>(types.size());
  const std::size_t stride = length + 2 * kLanePadding;
  Lanes registers(stride * (types.size() + 1), 0.0f);
  for (std::size_t k = 0; k < types.size(); ++k) {
    std::copy_n(args[k].begin(), length, registers.begin() + static_cast<std::ptrdiff_t>(stride * k));
    instruction.args[k] = {Place::kTile, static_cast<std::uint32_t>(k)};
  }
  instruction.out = {Place::kTile, static_cast<std::uint32_t>(types.size())};
  Strip strip;
  strip.file(Place::kTile) = {registers.data(), stride, false};
  strip.length = length;
  run(std::span(&instruction, 1), strip);
  const auto first = registers.begin() + static_cast<std::ptrdiff_t>(stride * types.size());
  return {first, first + static_cast<std::ptrdiff_t>(length)};
}

void expect_float(Op op, float got, double exact, float plain, const std::string& where) {
  if (std::isnan(exact)) {
    EXPECT_TRUE(std::isnan(got)) << where;
    return;
  }
  if (std::isinf(static_cast<float>(exact)) || std::isinf(plain)) {
    EXPECT_TRUE(got == static_cast<float>(exact) || got == plain) << where << " exact " << exact;
    return;
  }
  // Compositions (such as x * sigmoid(x)) are as exact as the same formula in plain f32. The exponent of gelu_tanh is
  // itself a rounded polynomial of magnitude up to 100. Three roundings of it move the result by up to 150 ulp.
  const double allowed = op == Op::kGeluTanh ? 150 : std::max(4.0, 2 * ulps(plain, exact) + 1);
  EXPECT_LE(ulps(got, exact), allowed) << where << " exact " << exact << " op " << ir::info(op).name;
}

void check_op(Op op, const std::vector<Type>& types) {
  std::string why;
  const auto type = ir::infer_type(op, types, &why);
  ASSERT_TRUE(type) << why;
  const std::vector<Lanes> args = combinations(types);
  const std::size_t length = args[0].size();
  const Lanes results = run_op(op, *type, types, args, length);
  Node node;
  node.op = op;
  node.type = *type;
  node.arg_count = static_cast<std::uint8_t>(types.size());
  for (std::size_t i = 0; i < length; ++i) {
    std::vector<ir::Scalar<double>> exact_args;
    std::vector<ir::Scalar<float>> plain_args;
    std::string where = ir::info(op).name;
    for (std::size_t k = 0; k < types.size(); ++k) {
      exact_args.push_back(scalar_of<double>(args[k][i], types[k]));
      plain_args.push_back(scalar_of<float>(args[k][i], types[k]));
      where += types[k] == Type::kF32 ? " " + std::to_string(args[k][i])
                                      : " " + std::to_string(std::bit_cast<std::int32_t>(args[k][i]));
    }
    const auto exact = ir::eval_op<double>(node, types[0], exact_args);
    const auto plain = ir::eval_op<float>(node, types[0], plain_args);
    const auto bits = std::bit_cast<std::int32_t>(results[i]);
    if (*type == Type::kF32)
      expect_float(op, results[i], exact.f, plain.f, where + " gives " + std::to_string(results[i]));
    else if (*type == Type::kI32)
      EXPECT_EQ(bits, plain.i) << where;
    else
      EXPECT_EQ(bits, plain.b ? -1 : 0) << where;
    if (testing::Test::HasFailure()) return;
  }
}

std::vector<std::vector<Type>> argument_types(ir::Signature signature) {
  using enum Type;
  switch (signature) {
    case ir::Signature::kLeaf: return {};
    case ir::Signature::kFloatUnary: return {{kF32}};
    case ir::Signature::kNumberUnary: return {{kF32}, {kI32}};
    case ir::Signature::kFloatBinary: return {{kF32, kF32}};
    case ir::Signature::kNumberBinary:
    case ir::Signature::kOrdering: return {{kF32, kF32}, {kI32, kI32}};
    case ir::Signature::kIntBinary: return {{kI32, kI32}};
    case ir::Signature::kEquality: return {{kF32, kF32}, {kI32, kI32}, {kBool, kBool}};
    case ir::Signature::kBoolBinary: return {{kBool, kBool}};
    case ir::Signature::kBoolUnary: return {{kBool}};
    case ir::Signature::kSelect: return {{kBool, kF32, kF32}, {kBool, kI32, kI32}, {kBool, kBool, kBool}};
    case ir::Signature::kCast: return {{kF32}, {kI32}, {kBool}};
  }
  return {};
}

class StripOp : public testing::TestWithParam<int> {
 protected:
  ~StripOp() override { use(0); }

  /// One instruction set of those compiled in, or the best again with 0.
  static void use(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_P(StripOp, MeansWhatTheOpTableSaysOnEveryInstructionSet) {
  const auto op = static_cast<Op>(GetParam());
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    SCOPED_TRACE(hwy::TargetName(target));
    use(target);
    for (const std::vector<Type>& types : argument_types(ir::info(op).signature)) check_op(op, types);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StripOp, testing::Range(static_cast<int>(Op::kAdd), kOpCount));

TEST(Strip, SharesOneValueAmongAllLanes) {
  const std::size_t length = 37;
  Lanes column(length + kLanePadding), out(length + kLanePadding);
  for (std::size_t i = 0; i < length; ++i) column[i] = static_cast<float>(i);
  Lanes row(kLanePadding, 0.0f);
  row[0] = 100;
  Instruction subtract;
  subtract.op = Op::kSub;
  subtract.arg_count = 2;
  subtract.args = {Slot{Place::kRow, 0}, Slot{Place::kColumn, 0}};
  subtract.out = {Place::kTile, 0};
  Strip strip;
  strip.length = length;
  strip.file(Place::kRow) = {row.data(), 1, true};
  strip.file(Place::kColumn) = {column.data(), 1, false};
  strip.file(Place::kTile) = {out.data(), 1, false};
  run(std::span(&subtract, 1), strip);
  for (std::size_t i = 0; i < length; ++i) EXPECT_EQ(out[i], 100.0f - static_cast<float>(i));
}

}  // namespace
}  // namespace scoremod::backend::cpu
