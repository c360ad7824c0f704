#include "support/gradient_check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

#include "ir/builder.hpp"
#include "support/interpreter.hpp"

namespace scoremod::test {
namespace {

/// A derivative holds constants such as ln 2 as f32, which a float64 evaluation sees. A chain of a few of them is off
/// by this much of the largest value that it passes through.
constexpr double kConstantRounding = 4 * 0x1p-24;
/// Differences of values beyond this say more about cancellation than about the derivative.
constexpr double kMaxMagnitude = 1e4;
/// A finite difference that is not known this well is no evidence.
constexpr double kWorstDifference = 1e-6;

std::size_t entry_count(const OperandDecl& decl) {
  std::size_t count = 1;
  for (int i = 0; i < decl.table_rank; ++i) count *= kTableExtent;
  return count;
}

std::size_t entry_of(std::span<const std::int32_t> indices) {
  std::size_t entry = 0;
  for (const std::int32_t index : indices) {
    entry = entry * kTableExtent + static_cast<std::size_t>(std::clamp(index, 0, kTableExtent - 1));
  }
  return entry;
}

Element<double> element_at(const Program& program, const GradientPoint& point) {
  Element<double> element;
  element.score = point.score;
  element.upstream = point.upstream;
  element.b = point.b;
  element.h = point.h;
  element.q = point.q;
  element.kv = point.kv;
  element.read = [&](std::uint32_t operand, std::span<const std::int32_t> indices) {
    const double value = point.operands[operand][entry_of(indices)];
    ir::Scalar<double> out;
    switch (program.operands()[operand].type) {
      case Type::kF32: out.f = value; break;
      case Type::kI32: out.i = static_cast<std::int32_t>(value); break;
      case Type::kBool: out.b = value != 0; break;
    }
    return out;
  };
  return element;
}

double value_at(const Program& program, const GradientPoint& point) {
  return interpret(program, element_at(program, point))[program.value()].f;
}

struct Difference {
  double derivative = 0;
  double error = std::numeric_limits<double>::infinity();
};

/// d f / d x by central differences at shrinking steps, extrapolated to step 0.
Difference ridders(const std::function<double(double)>& f, double x) {
  constexpr int kSteps = 12;
  constexpr double kShrink = 1.6;
  std::array<std::array<double, kSteps>, kSteps> table{};
  Difference best;
  double step = 0.02 * std::max(1.0, std::abs(x));
  for (int i = 0; i < kSteps; ++i, step /= kShrink) {
    table[0][i] = (f(x + step) - f(x - step)) / (2 * step);
    double factor = kShrink * kShrink;
    for (int j = 1; j <= i; ++j, factor *= kShrink * kShrink) {
      table[j][i] = (table[j - 1][i] * factor - table[j - 1][i - 1]) / (factor - 1);
      const double error =
          std::max(std::abs(table[j][i] - table[j - 1][i]), std::abs(table[j][i] - table[j - 1][i - 1]));
      if (error <= best.error) best = {table[j][i], error};
    }
  }
  return best;
}

/// True when one-sided differences at two small steps agree with the extrapolated one. Then there is no kink or jump at
/// x, nor did the long steps of the extrapolation leap over some. One step alone misses a round() that rounding
/// decides: that of 0.5 give or take a unit in the last place jumps at some points only.
bool smooth_at(const std::function<double(double)>& f, double x, const Difference& difference) {
  const double allowed = 1e-2 * std::max(1.0, std::abs(difference.derivative));
  return std::ranges::all_of(std::array{1e-5, 1e-4}, [&](double part) {
    const double step = part * std::max(1.0, std::abs(x));
    const double right = (f(x + step) - f(x)) / step;
    const double left = (f(x) - f(x - step)) / step;
    return std::abs(right - difference.derivative) <= allowed && std::abs(left - difference.derivative) <= allowed;
  });
}

/// The adjoints at one point: of the score, and of each entry of each operand.
struct Adjoints {
  double score = 0;
  std::vector<std::vector<double>> operands;
  double magnitude = 1;  ///< of the largest value on the way
};

Adjoints adjoints_at(const Program& derivative, const GradientPoint& point) {
  const auto values = interpret(derivative, element_at(derivative, point));
  Adjoints out;
  for (const auto& entries : point.operands) out.operands.emplace_back(entries.size(), 0.0);
  for (const Root& root : derivative.roots()) {
    if (root.kind == RootKind::kScoreAdjoint) out.score = values[root.node].f;
    if (root.kind != RootKind::kOperandAdjoint) continue;
    std::vector<std::int32_t> indices;
    for (const NodeId index : ir::indices_of(derivative, root)) indices.push_back(values[index].i);
    out.operands[root.operand][entry_of(indices)] += values[root.node].f;
  }
  for (std::size_t id = 0; id < values.size(); ++id) {
    const double size = std::abs(values[id].f);
    if (derivative.nodes()[id].type == Type::kF32 && std::isfinite(size)) out.magnitude = std::max(out.magnitude, size);
  }
  return out;
}

class Check {
 public:
  Check(const Program& program, const Program& derivative, const GradientPoint& point)
      : program_(program), derivative_(derivative), point_(point), adjoints_(adjoints_at(derivative, point)) {}

  GradientReport run() {
    compare("score", adjoints_.score, point_.score, [](GradientPoint& at) -> double& { return at.score; });
    for (std::size_t operand = 0; operand < point_.operands.size(); ++operand) {
      const OperandDecl& decl = program_.operands()[operand];
      if (decl.type != Type::kF32) continue;
      for (std::size_t entry = 0; entry < point_.operands[operand].size(); ++entry) {
        const std::string name = decl.name + "[" + std::to_string(entry) + "]";
        compare(name, adjoints_.operands[operand][entry], point_.operands[operand][entry],
                [=](GradientPoint& at) -> double& { return at.operands[operand][entry]; });
      }
    }
    return report_;
  }

 private:
  void compare(const std::string& name, double found, double x,
               const std::function<double&(GradientPoint&)>& coordinate) {
    const auto f = [&](double moved) {
      GradientPoint at = point_;
      coordinate(at) = moved;
      return value_at(program_, at);
    };
    const Difference difference = ridders(f, x);
    const double size = std::max(1.0, std::abs(difference.derivative));
    const bool known =
        std::isfinite(f(x)) && difference.error <= kWorstDifference * size && smooth_at(f, x, difference);
    if (!known || adjoints_.magnitude > kMaxMagnitude) {
      ++report_.skipped;
      return;
    }
    ++report_.compared;
    const double expected = point_.upstream * difference.derivative;
    const double tolerance = 2 * std::abs(point_.upstream) * difference.error + kConstantRounding * adjoints_.magnitude;
    if (std::abs(found - expected) <= tolerance || !report_.mismatch.empty()) return;
    std::ostringstream text;
    text.precision(12);
    text << "d " << name << " at " << x << ": found " << found << ", finite differences give " << expected
         << " (tolerance " << tolerance << ")\n  score " << point_.score << ", b " << point_.b << ", h " << point_.h
         << ", q_idx " << point_.q << ", kv_idx " << point_.kv << "\nprogram:\n"
         << program_.to_string() << "derivative:\n"
         << derivative_.to_string();
    report_.mismatch = text.str();
  }

  const Program& program_;
  const Program& derivative_;
  const GradientPoint& point_;
  Adjoints adjoints_;
  GradientReport report_;
};

}  // namespace

GradientPoint random_point(const Program& program, std::mt19937& random, double low, double high) {
  std::uniform_real_distribution<double> real(low, high);
  std::uniform_int_distribution<std::int32_t> whole(0, 11);
  GradientPoint point;
  point.score = real(random);
  point.upstream = std::uniform_real_distribution<double>(0.5, 2)(random);
  for (std::int32_t* index : {&point.b, &point.h, &point.q, &point.kv}) *index = whole(random);
  for (const OperandDecl& decl : program.operands()) {
    std::vector<double> entries(entry_count(decl));
    for (double& entry : entries) {
      entry = decl.type == Type::kF32 ? real(random) : decl.type == Type::kI32 ? whole(random) : whole(random) % 2;
    }
    point.operands.push_back(std::move(entries));
  }
  return point;
}

GradientReport check_gradient(const Program& program, const Program& derivative, const GradientPoint& point) {
  return Check(program, derivative, point).run();
}

}  // namespace scoremod::test
