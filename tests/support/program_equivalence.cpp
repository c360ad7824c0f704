#include "support/program_equivalence.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "ir/builder.hpp"
#include "support/interpreter.hpp"

namespace scoremod::test {
namespace {

using FloatLimits = std::numeric_limits<float>;
using IntLimits = std::numeric_limits<std::int32_t>;

constexpr std::array kSpecialFloats{0.0f,
                                    -0.0f,
                                    1.0f,
                                    -1.0f,
                                    0.5f,
                                    -2.0f,
                                    3.0f,
                                    1e-45f,
                                    -1e-40f,
                                    1e30f,
                                    -3e38f,
                                    2147483648.0f,
                                    16777217.0f,
                                    FloatLimits::infinity(),
                                    -FloatLimits::infinity(),
                                    FloatLimits::quiet_NaN()};
constexpr std::array kSpecialInts{
    0, 1, -1, 2, -2, 3, 7, 16777217, 1 << 30, IntLimits::max(), IntLimits::min(), -IntLimits::max()};

/// Leaf values as a function of the leaf, so that two programs read equal values.
class Leaves {
 public:
  explicit Leaves(std::uint64_t seed) : seed_(seed) {}

  float real(std::uint64_t what) const {
    const std::uint64_t word = mix(what);
    if (special()) return kSpecialFloats[word % kSpecialFloats.size()];
    return static_cast<float>(static_cast<double>(word >> 11) * 0x1p-50 - 4);
  }

  std::int32_t whole(std::uint64_t what) const {
    const std::uint64_t word = mix(~what);
    if (special()) return kSpecialInts[word % kSpecialInts.size()];
    // Small numbers meet; large ones wrap.
    return word % 4 == 0 ? static_cast<std::int32_t>(word >> 32) : static_cast<std::int32_t>(word >> 32) % 9;
  }

 private:
  bool special() const { return seed_ % 2 == 1; }

  /// Random bits that depend on the seed and on the leaf (splitmix64: Steele, Lea and Flood, OOPSLA 2014).
  std::uint64_t mix(std::uint64_t what) const {
    std::uint64_t x = (seed_ + 1) * 0x9e3779b97f4a7c15ull ^ what * 0xd1342543de82ef95ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }

  std::uint64_t seed_;
};

std::vector<ir::Scalar<float>> evaluate(const Program& program, std::uint64_t seed) {
  const Leaves leaves(seed);
  Element<float> element;
  element.score = leaves.real(1);
  element.upstream = leaves.real(2);
  element.b = leaves.whole(3);
  element.h = leaves.whole(4);
  element.q = leaves.whole(5);
  element.kv = leaves.whole(6);
  element.read = [&](std::uint32_t operand, std::span<const std::int32_t> indices) {
    std::uint64_t what = 100 + operand;
    for (const std::int32_t index : indices) what = what * 6364136223846793005ull + static_cast<std::uint32_t>(index);
    ir::Scalar<float> out;
    out.f = leaves.real(what);
    out.i = leaves.whole(what);
    out.b = leaves.whole(what) % 2 != 0;
    return out;
  };
  return interpret(program, element);
}

/// A root's value as text that is equal for equal bits, and for any two NaN.
std::string describe(const Program& program, const Root& root, const std::vector<ir::Scalar<float>>& values) {
  std::ostringstream out;
  if (root.kind == RootKind::kOperandAdjoint) {
    out << "accumulate " << program.operands()[root.operand].name << "[";
    for (const NodeId index : ir::indices_of(program, root)) out << values[index].i << " ";
    out << "] ";
  }
  const ir::Scalar<float>& value = values[root.node];
  if (program.nodes()[root.node].type == Type::kBool)
    out << (value.b ? "true" : "false");
  else if (std::isnan(value.f))
    out << "nan";
  else
    out << value.f << " (0x" << std::hex << std::bit_cast<std::uint32_t>(value.f) << ")";
  return out.str();
}

std::string describe_keep(const Program& program, const std::vector<ir::Scalar<float>>& values) {
  // No keep root is the same as one that is true.
  return program.keep() == kNoNode || values[program.keep()].b ? "keep" : "drop";
}

std::vector<std::string> describe_roots(const Program& program, std::uint64_t seed) {
  const auto values = evaluate(program, seed);
  std::vector<std::string> out{describe_keep(program, values)};
  for (const Root& root : program.roots()) {
    if (root.kind != RootKind::kKeep) out.push_back(describe(program, root, values));
  }
  return out;
}

}  // namespace

std::string difference(const Program& expected, const Program& found, std::uint64_t seed) {
  const auto left = describe_roots(expected, seed);
  const auto right = describe_roots(found, seed);
  if (left.size() != right.size()) return "the programs have different roots";
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i] != right[i]) return "expected " + left[i] + ", found " + right[i];
  }
  return "";
}

std::string first_difference(const Program& expected, const Program& found, std::uint64_t count) {
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const std::string what = difference(expected, found, seed);
    if (what.empty()) continue;
    return "seed " + std::to_string(seed) + ": " + what + "\nexpected program:\n" + expected.to_string() +
           "found program:\n" + found.to_string();
  }
  return "";
}

}  // namespace scoremod::test
