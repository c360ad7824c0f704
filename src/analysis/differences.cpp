#include "analysis/differences.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "analysis/dependence.hpp"
#include "ir/builder.hpp"

namespace scoremod::analysis {
namespace {

/// q * q_idx + kv * kv_idx + something that varies with neither, in the ring of i32.
struct Linear {
  std::uint32_t q = 0, kv = 0;
};
using MaybeLinear = std::optional<Linear>;

/// The linear form of an i32 node that varies with queries or keys.
MaybeLinear linear_of(const Program& program, const Node& node, const std::vector<MaybeLinear>& forms) {
  switch (node.op) {
    case Op::kQueryIdx: return Linear{1, 0};
    case Op::kKeyIdx: return Linear{0, 1};
    case Op::kNeg:
    case Op::kAdd:
    case Op::kSub:
    case Op::kMul: break;
    default: return {};
  }
  const MaybeLinear& x = forms[node.args[0]];
  if (!x) return {};
  if (node.op == Op::kNeg) return Linear{0U - x->q, 0U - x->kv};
  const MaybeLinear& y = forms[node.args[1]];
  if (!y) return {};
  if (node.op == Op::kAdd) return Linear{x->q + y->q, x->kv + y->kv};
  if (node.op == Op::kSub) return Linear{x->q - y->q, x->kv - y->kv};
  for (const std::size_t i : {0, 1}) {
    const Node& factor = program.nodes()[node.args[i]];
    if (factor.op != Op::kConstant) continue;
    const auto by = static_cast<std::uint32_t>(ir::constant_i32(factor));
    const Linear& other = i == 0 ? *y : *x;
    return Linear{by * other.q, by * other.kv};
  }
  return {};
}

/// Whether x and y of a comparison lie as far apart wherever their query and key do.
bool compares_differences(const Node& node, const std::vector<MaybeLinear>& forms) {
  if (node.op < Op::kEq || node.op > Op::kGe) return false;
  const MaybeLinear &x = forms[node.args[0]], &y = forms[node.args[1]];
  // Multiples of an index may wrap for some and not for others, and so may a band of masks::classify().
  const auto small = [](std::uint32_t factor) { return factor + 1 <= 2; };
  if (!x || !y || !small(x->q) || !small(x->kv) || !small(y->q) || !small(y->kv)) return false;
  return x->q - y->q + x->kv - y->kv == 0;
}

}  // namespace

std::vector<bool> of_differences(const Program& program) {
  const std::vector<Node>& nodes = program.nodes();
  const std::vector<Dependence> dependences = analysis::dependences(program);
  std::vector<MaybeLinear> forms(nodes.size());
  std::vector<bool> found(nodes.size());
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    const Node& node = nodes[id];
    const Dependence& on = dependences[id];
    if (on.score) continue;
    if (!on.on(Axis::kQuery) && !on.on(Axis::kKey)) {
      found[id] = true;
      if (node.type == Type::kI32) forms[id] = Linear{};
      continue;
    }
    if (node.type == Type::kI32) forms[id] = linear_of(program, node, forms);
    if (forms[id] && forms[id]->q + forms[id]->kv == 0) {
      found[id] = true;
      continue;
    }
    const auto args = ir::args_of(node);
    found[id] = compares_differences(node, forms) ||
                (!args.empty() && std::ranges::all_of(args, [&](NodeId arg) { return found[arg]; }));
  }
  return found;
}

}  // namespace scoremod::analysis
