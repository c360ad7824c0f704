#include "verification/small_constants.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "backend/program_structure.hpp"
#include "ir/builder.hpp"

namespace scoremod::verification {
namespace {

constexpr std::int64_t kSmall = 128;
constexpr std::int64_t kMaxGap = 64;
constexpr std::int64_t kBeyond = 1024;

bool is_i32_constant(const Node& node) { return node.op == Op::kConstant && node.type == Type::kI32; }
std::int64_t value_of(const Node& node) { return ir::constant_i32(node); }

bool same_structure(const Program& x, const Program& y) {
  CanonicalWriter of_x, of_y;
  backend::write_structure(of_x, x);
  backend::write_structure(of_y, y);
  return of_x.written() == of_y.written();
}

bool same_bound(const std::optional<std::int64_t>& x, const std::optional<std::int64_t>& y) {
  return x.has_value() == y.has_value() && (!x || backend::constant_kind(*x) == backend::constant_kind(*y));
}

bool same_structure(const masks::MaskClass& x, const masks::MaskClass& y) {
  if (x.kind != y.kind || x.band.has_value() != y.band.has_value()) return false;
  const bool same_band = !x.band || (x.band->anchor == y.band->anchor && same_bound(x.band->left, y.band->left) &&
                                     same_bound(x.band->right, y.band->right));
  const auto same_term = [](const masks::MaskTerm& a, const masks::MaskTerm& b) {
    return a.kind == b.kind && a.node == b.node && a.axis == b.axis && a.from_start == b.from_start;
  };
  return same_band && std::ranges::equal(x.terms, y.terms, same_term);
}

}  // namespace

bool same_structure(const compiler::CompiledProblem& x, const compiler::CompiledProblem& y) {
  const auto same = [](const auto& a, const auto& b) {
    return same_structure(a.program, b.program) && same_structure(a.mask, b.mask);
  };
  if (x.backward.has_value() != y.backward.has_value()) return false;
  return same(x.forward, y.forward) && (!x.backward || same(*x.backward, *y.backward));
}

std::optional<Program> with_constants(const Program& program,
                                      const std::function<std::int64_t(std::int64_t)>& replaced) {
  ir::Builder builder;
  for (const OperandDecl& decl : program.operands()) builder.declare(decl);
  std::vector<NodeId> made;
  std::set<std::int64_t> before, after;
  for (const Node& node : program.nodes()) {
    if (is_i32_constant(node)) {
      const std::int64_t old_value = value_of(node), value = replaced(old_value);
      before.insert(old_value);
      after.insert(value);
      if (backend::constant_kind(value) != backend::constant_kind(old_value)) return std::nullopt;
      made.push_back(builder.constant(static_cast<std::int32_t>(value)));
      continue;
    }
    std::vector<NodeId> args;
    for (const NodeId arg : ir::args_of(node)) args.push_back(made[arg]);
    made.push_back(builder.remake(node, args));
  }
  if (before.size() != after.size()) return std::nullopt;
  std::vector<Root> roots = program.roots();
  for (Root& root : roots) root.node = made[root.node];
  return builder.finish(roots);
}

std::function<std::int64_t(std::int64_t)> small_constants(const Program& program,
                                                          const std::function<bool(std::int64_t)>& left_out) {
  std::set<std::int64_t> magnitudes;
  for (const Node& node : program.nodes()) {
    const std::int64_t magnitude = is_i32_constant(node) ? std::abs(value_of(node)) : 0;
    if (magnitude < kBeyond && !left_out(magnitude)) magnitudes.insert(magnitude);
  }
  std::map<std::int64_t, std::int64_t> smaller;
  std::int64_t before = 0, last = 0;
  for (const std::int64_t magnitude : magnitudes) {
    const std::int64_t closest = last + std::min(magnitude - before, kMaxGap);
    last = magnitude <= kSmall ? magnitude : std::max(closest, std::min(kSmall, last + magnitude - before));
    before = magnitude;
    smaller[magnitude] = last;
  }
  return [smaller = std::move(smaller)](std::int64_t value) {
    const auto found = smaller.find(std::abs(value));
    return found == smaller.end() ? value : value < 0 ? -found->second : found->second;
  };
}

}  // namespace scoremod::verification
