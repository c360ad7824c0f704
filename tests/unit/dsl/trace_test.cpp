#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/dsl.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

using test::refusal;

struct Twin {
  const char* name;
  Program traced;
  const char* text;
};

std::vector<Twin> twins() {
  const Operand<Float> slopes("slopes", {Axis::kHead});
  const Operand<Int> documents("documents", {Axis::kBatch, Axis::kKey});
  const Operand<Bool> allowed("allowed", {Axis::kQuery});
  const Operand<Float> temperature("temperature");
  const Table<Float, 2> bias("bias");
  const Table<Int, 1> lengths("lengths");
  const int n = 7;
  return {
      {"identity", trace(ScoreMod{}), "value = score"},
      {"soft cap", trace([](Score s, Index) { return 50.f * tanh(s / 50.f); }), "value = 50.0 * tanh(score / 50.0)"},
      {"mask only", trace([](Index i) { return i.q >= i.kv; }), "value = score; keep = q_idx >= kv_idx"},
      {"both", trace([](Score s, Index) { return s + 1; }, [](Index i) { return i.kv < 5; }),
       "value = score + 1.0; keep = kv_idx < 5"},
      {"five arguments", trace([](Score s, Int b, Int h, Int q, Int kv) { return s + f32(b + h * q - kv); }),
       "value = score + f32(b + h * q_idx - kv_idx)"},
      {"four arguments", trace(MaskMod([](Int b, Int h, Int q, Int kv) { return b + h <= q + kv; })),
       "value = score; keep = b + h <= q_idx + kv_idx"},
      {"broadcast operand", trace([=](Score s, Index i) { return s + slopes * f32(i.kv - i.q); }),
       "operand slopes: f32 [h]\nvalue = score + slopes * f32(kv_idx - q_idx)"},
      {"operand alone", trace([=](Score, Index) { return temperature; }),
       "operand temperature: f32 []\nvalue = temperature"},
      {"two operands of one name",
       trace([=](Score s, Index) { return s * slopes + Operand<Float>("slopes", {Axis::kHead}); }),
       "operand slopes: f32 [h]\nvalue = score * slopes + slopes"},
      {"int and bool operands", trace(MaskMod([=](Index i) { return documents == i.q && (allowed || i.q == 0); })),
       "operand documents: i32 [b, kv_idx]\noperand allowed: bool [q_idx]\n"
       "value = score; keep = documents == q_idx & (allowed | q_idx == 0)"},
      {"table", trace([=](Score s, Index i) { return s + bias(i.h, i.q - i.kv + n); }),
       "table bias: f32 rank 2\nvalue = score + bias[h, q_idx - kv_idx + 7]"},
      {"table at literals", trace(MaskMod([=](Index i) { return i.kv < lengths(i.b) + lengths(0); })),
       "table lengths: i32 rank 1\nvalue = score; keep = kv_idx < lengths[b] + lengths[0]"},
      {"table at an operand", trace([=](Score s, Index i) { return s + bias(documents, i.h); }),
       "operand documents: i32 [b, kv_idx]\ntable bias: f32 rank 2\nvalue = score + bias[documents, h]"},
      {"literal kinds", trace([](Score s, Index) { return (1 + s) * 2.5 - 3.f / s + std::int64_t{4} + 5u; }),
       "value = (1.0 + score) * 2.5 - 3.0 / score + 4.0 + 5.0"},
      {"captured literal", trace([cap = Float(3.f)](Score s, Index) { return s * cap; }), "value = score * 3.0"},
      {"constant result", trace([](Score, Index) { return 2; }, [](Index) { return true; }),
       "value = 2.0; keep = true"},
      {"compound assignment", trace([](Score s, Index i) {
         Int d = i.q;
         d -= i.kv, d *= 2, d += 1;
         s += f32(d), s *= 3, s -= 1, s /= 7;
         return s;
       }),
       "value = ((score + f32((q_idx - kv_idx) * 2 + 1)) * 3.0 - 1.0) / 7.0"},
      {"select", trace([](Score s, Index i) { return select(i.q > i.kv, s, 0) + where(i.q == 1, s, -INFINITY); }),
       "value = select(q_idx > kv_idx, score, 0.0) + select(q_idx == 1, score, -inf)"},
      {"select of literals",
       trace([](Score s, Index i) { return s * select(i.h == 0, 2.f, 0.5) + f32(select(i.h == 1, 3, 4)); }),
       "value = score * select(h == 0, 2.0, 0.5) + f32(select(h == 1, 3, 4))"},
      {"select of booleans", trace(MaskMod([](Index i) { return select(i.h == 0, i.q == i.kv, Bool(false)); })),
       "value = score; keep = select(h == 0, q_idx == kv_idx, false)"},
      {"casts",
       trace([](Score s, Index i) { return f32(i32(s)) + f32(to_bool(s) ^ to_bool(i.q)) + f32(i32(i.q == 0)); }),
       "value = f32(i32(score)) + f32(bool(score) ^ bool(q_idx)) + f32(i32(q_idx == 0))"},
      {"casts to the same type",
       trace([](Score s, Index) { return f32(s); }, [](Index i) { return to_bool(i32(i.q) == i.kv); }),
       "value = score; keep = q_idx == kv_idx"},
  };
}

TEST(Trace, EqualsItsTextTwin) {
  for (const Twin& twin : twins()) {
    EXPECT_EQ(twin.traced, Program::parse(twin.text)) << twin.name << ":\n" << twin.traced.to_string();
  }
}

TEST(Trace, EveryOperatorAndFunctionRecordsItsOp) {
  const auto unary = [](Float (*f)(Float)) { return trace([f](Score s, Index) { return f(s); }); };
  const std::vector<std::pair<Float (*)(Float), const char*>> functions = {
      {operator-, "-score"},         {abs, "abs(score)"},
      {sign, "sign(score)"},         {floor, "floor(score)"},
      {ceil, "ceil(score)"},         {round, "round(score)"},
      {exp, "exp(score)"},           {exp2, "exp2(score)"},
      {expm1, "expm1(score)"},       {log, "log(score)"},
      {log1p, "log1p(score)"},       {sqrt, "sqrt(score)"},
      {rsqrt, "rsqrt(score)"},       {reciprocal, "reciprocal(score)"},
      {sin, "sin(score)"},           {cos, "cos(score)"},
      {tan, "tan(score)"},           {tanh, "tanh(score)"},
      {sigmoid, "sigmoid(score)"},   {erf, "erf(score)"},
      {erfc, "erfc(score)"},         {atan, "atan(score)"},
      {softplus, "softplus(score)"}, {relu, "relu(score)"},
      {gelu, "gelu(score)"},         {gelu_tanh, "gelu_tanh(score)"},
      {silu, "silu(score)"}};
  for (const auto& [function, text] : functions) {
    EXPECT_EQ(unary(function), Program::parse(std::string("value = ") + text)) << text;
  }
  EXPECT_EQ(trace([](Score s, Index i) {
              const Float x = f32(i.q);
              return pow(s, x) + min(s, x) + max(s, x) + s % x + s / x;
            }),
            Program::parse("let x = f32(q_idx)\n"
                           "value = pow(score, x) + min(score, x) + max(score, x) + score % x + score / x"));
  EXPECT_EQ(
      trace([](Score, Index i) {
        return f32(floor_div(i.q, 3) + i.q % 4 - min(i.q, i.kv) + max(i.q, 1) + abs(-i.h) * sign(i.b));
      }),
      Program::parse("value = f32(q_idx // 3 + q_idx % 4 - min(q_idx, kv_idx) + max(q_idx, 1) + abs(-h) * sign(b))"));
  EXPECT_EQ(trace([](Score s, Index) { return s; },
                  [](Index i) {
                    const Float x = f32(i.q), y = 2;
                    return ((x == y) ^ (x != y)) | ((x < y) & (x <= y)) | ((x > y) & !(x >= y));
                  }),
            Program::parse("let x = f32(q_idx)\nvalue = score\n"
                           "keep = (x == 2.0 ^ x != 2.0) | (x < 2.0 & x <= 2.0) | (x > 2.0 & !(x >= 2.0))"));
  EXPECT_EQ(
      trace(MaskMod([](Index i) {
        const Bool a = i.q == i.kv, b = i.q != i.kv, c = i.q<i.kv, d = i.q <= i.kv, e = i.q> i.kv;
        return ((a && b) || (c == d)) != e;
      })),
      Program::parse("value = score\nkeep = ((q_idx == kv_idx & q_idx != kv_idx) | ((q_idx < kv_idx) == (q_idx <= "
                     "kv_idx))) != (q_idx > kv_idx)"));
}

TEST(Trace, RefusesAHandleOfATraceThatHasEnded) {
  std::optional<Float> leaked;
  trace([&](Score s, Index) {
    leaked = s;
    return s;
  });
  EXPECT_NE(refusal([&] { trace([&](Score s, Index) { return s + *leaked; }); }).find("which has ended"),
            std::string::npos);
  EXPECT_NE(refusal([&] { trace([&](Score, Index) { return *leaked; }); }).find("which has ended"), std::string::npos);
}

TEST(Trace, RefusesAHandleOfAnEnclosingTraceButTracesNest) {
  const Program outer = trace([](Score s, Index) {
    EXPECT_EQ(trace([](Score t, Index) { return -t; }), Program::parse("value = -score"));
    EXPECT_NE(refusal([&] { trace([&](Score t, Index) { return s + t; }); }).find("an enclosing call of trace()"),
              std::string::npos);
    return s * 2;
  });
  EXPECT_EQ(outer, Program::parse("value = score * 2.0"));
}

TEST(Trace, RefusesExpressionsOutsideOfATrace) {
  EXPECT_NE(refusal([] { Float(1.f) + Float(2.f); }).find("outside of one"), std::string::npos);
  EXPECT_NE(refusal([] { Operand<Float>("x").value(); }).find("outside of one"), std::string::npos);
  // A trace that ended with an exception leaves no trace behind.
  EXPECT_THROW(trace([](Score, Index) -> Float { throw 7; }), int);
  EXPECT_NE(refusal([] { Float(1.f) + Float(2.f); }).find("outside of one"), std::string::npos);
}

TEST(Trace, DeclaresWhatTheResultReadsFromLeftToRight) {
  const Operand<Float> x("x"), y("y"), z("z");
  const auto program = trace([=](Score s, Index) {
    const Float unused = s * z;
    return select(unused == 1 || true, s, s) + y / x;
  });
  EXPECT_EQ(program.operands().size(), 3u);
  EXPECT_EQ(program.operands()[0].name, "z");
  EXPECT_EQ(program.operands()[1].name, "y");
  EXPECT_EQ(program.operands()[2].name, "x");
  EXPECT_EQ(trace([=](Score s, Index) { return x.value(), s; }), Program());
}

TEST(Trace, RefusesConflictingDeclarations) {
  const auto conflict = [](auto other) {
    return refusal([&] {
      trace([&](Score s, Index i) {
        s += Operand<Float>("x", {Axis::kHead});
        return s + other(i);
      });
    });
  };
  EXPECT_EQ(conflict([](Index) { return Operand<Float>("x").value(); }),
            "operand 'x' is used as f32 [h] and as f32 []: rename one, or declare both the same");
  EXPECT_EQ(conflict([](Index i) { return Table<Float, 1>("x")(i.h); }),
            "operand 'x' is used as f32 [h] and as f32 table of rank 1: rename one, or declare both the same");
  EXPECT_EQ(conflict([](Index) { return f32(Operand<Int>("x", {Axis::kHead})); }),
            "operand 'x' is used as f32 [h] and as i32 [h]: rename one, or declare both the same");
}

TEST(Trace, RefusesBadOperandNames) {
  EXPECT_NE(refusal([] { trace([](Score s, Index) { return s + Operand<Float>("score"); }); }).find("rename it"),
            std::string::npos);
  EXPECT_NE(refusal([] { trace([](Score s, Index) { return s + Operand<Float>("1x"); }); }).find("rename it"),
            std::string::npos);
  EXPECT_NE(refusal([] { trace([](Score s, Index) { return s + Operand<Float>(""); }); }).find("rename it"),
            std::string::npos);
}

TEST(Literal, IsRefusedWhereTheTypeCannotHoldIt) {
  EXPECT_NE(refusal([] { Float(1e300); }).find("range of float32"), std::string::npos);
  EXPECT_NE(refusal([] { Float(16777217); }).find("can't hold it exactly"), std::string::npos);
  EXPECT_NE(refusal([] { Float(INT64_MAX); }).find("can't hold it exactly"), std::string::npos);
  EXPECT_NE(refusal([] { Int(std::int64_t{1} << 31); }).find("range of int32"), std::string::npos);
  EXPECT_NE(refusal([] { Int(UINT64_MAX); }).find("range of int32"), std::string::npos);
  EXPECT_NO_THROW(Float(16777216));
  EXPECT_NO_THROW(Float(std::int64_t{1} << 40));
  EXPECT_NO_THROW(Float(1e-300));  // rounds to zero, as any float literal would
  EXPECT_NO_THROW(Float{INFINITY});
  EXPECT_NO_THROW(Int(INT32_MIN));
}

// Expressions that must not compile: each would have to convert silently, or decide on a value that is not known yet.
template <class X, class Y>
concept Adds = requires(X x, Y y) {
  x + y;
};
template <class X, class Y>
concept Divides = requires(X x, Y y) {
  x / y;
};
template <class X, class Y>
concept Compares = requires(X x, Y y) {
  x < y;
};
template <class X, class Y, class Z>
concept Selects = requires(X x, Y y, Z z) {
  select(x, y, z);
};

static_assert(Adds<Float, Float> && Adds<Float, float> && Adds<Float, int> && Adds<double, Float> && Adds<Int, int>);
static_assert(Adds<Operand<Float>, Operand<Float>> && Adds<Operand<Int>, int> && Adds<Operand<Float>, double>);
static_assert(!Adds<Float, Int> && !Adds<Int, float> && !Adds<Float, bool> && !Adds<Int, Bool> && !Adds<Bool, Bool>);
static_assert(!Adds<Operand<Float>, Int> && !Adds<Operand<Int>, Float>);
static_assert(!Divides<Int, Int> && !Divides<Int, int> && Divides<Float, int>);
static_assert(!Compares<Float, Int> && !Compares<Bool, Bool> && !Compares<Int, float> && Compares<int, Int>);
static_assert(Selects<Bool, Float, int> && !Selects<Bool, Float, Int> && !Selects<Float, Float, Float>);
static_assert(!std::is_constructible_v<bool, Bool>);
static_assert(!std::is_constructible_v<ScoreMod, MaskMod> && !std::is_constructible_v<MaskMod, ScoreMod>);
static_assert(std::is_invocable_v<Table<Float, 2>, Int, int> && !std::is_invocable_v<Table<Float, 2>, Int> &&
              !std::is_invocable_v<Table<Float, 1>, Float>);

}  // namespace
}  // namespace scoremod
