// Made by tools/fit_score_costs.py from the times of patterns/sm_90-9.19.0.json and of h200.json and peers.json of
// bench/results.
#include "backend/cudnn/patterns/score_costs.hpp"

#include <algorithm>
#include <iterator>

namespace scoremod::backend::cudnn {
namespace {

constexpr double kUnseen = -1;

struct ScoreCost {
  std::string_view work;
  double forward, backward;
};

/// In the order of their names.
constexpr ScoreCost kCosts[] = {
    {"abs", 0.0811, 0.0000},
    {"abs.i32", 0.1175, 0.0148},
    {"add", 0.0435, 0.0281},
    {"add.i32", 0.0000, 0.0035},
    {"adjoint.read.fixed.bf16", kUnseen, 0.0000},
    {"adjoint.read.fixed.f16", kUnseen, 0.0000},
    {"adjoint.read.fixed.f32", kUnseen, 0.0000},
    {"adjoint.read.q.bf16", kUnseen, 0.1162},
    {"adjoint.read.q.f16", kUnseen, 0.1280},
    {"adjoint.read.q.f32", kUnseen, 0.1254},
    {"adjoint.read.qk.bf16", kUnseen, 7.9441},
    {"adjoint.read.qk.f16", kUnseen, 7.9867},
    {"adjoint.read.qk.f32", kUnseen, 10.3504},
    {"adjoint.read.repeated.bf16", kUnseen, 0.1161},
    {"adjoint.read.repeated.f16", kUnseen, 0.1272},
    {"adjoint.read.repeated.f32", kUnseen, 0.1240},
    {"adjoint.read.repeated_k.bf16", kUnseen, 3.5864},
    {"adjoint.read.repeated_k.f16", kUnseen, 3.6023},
    {"adjoint.read.repeated_k.f32", kUnseen, 3.6862},
    {"binary_select", 3.4009, 2.8110},
    {"binary_select.constant", kUnseen, 0.2688},
    {"binary_select.cut", 0.0278, 0.0094},
    {"cmp_eq", 0.1132, 0.1842},
    {"cmp_eq.i32", kUnseen, 0.8470},
    {"cmp_ge", 0.0000, 0.1399},
    {"cmp_ge.i32", 0.0341, 0.0599},
    {"cmp_gt", 0.0000, 0.0000},
    {"cmp_gt.i32", 0.0654, 0.0349},
    {"cmp_le", 0.0000, 0.0849},
    {"cmp_le.i32", 0.0419, 0.0105},
    {"cmp_lt", 0.0000, 0.4141},
    {"cmp_lt.i32", 0.0744, 0.0316},
    {"cmp_neq", 0.1164, 0.2685},
    {"cos", 0.2394, 0.2742},
    {"div", 0.0711, 0.0324},
    {"erf", 1.0915, 1.5142},
    {"exp", 0.2383, 0.2685},
    {"floor", 0.1366, 0.5406},
    {"gelu", 1.3586, 1.4960},
    {"gelu_tanh", 0.3787, 0.8414},
    {"gen_index", 0.0000, 0.0080},
    {"identity", 0.0000, 0.0000},
    {"log", 0.1215, 0.0101},
    {"logical_and", 0.0000, 0.0000},
    {"logical_not", kUnseen, 1.6669},
    {"logical_or", 0.0000, 0.0000},
    {"max", 0.0889, 0.0000},
    {"max.i32", 0.0676, 0.0598},
    {"min", 0.0911, 0.0000},
    {"min.i32", 0.1000, 0.1070},
    {"mul", 0.0244, 0.0000},
    {"mul.i32", 0.0016, 0.0000},
    {"neg", 0.0390, 0.0021},
    {"pow", 0.3141, 0.1719},
    {"read.fixed.bf16", 0.0342, 0.0000},
    {"read.fixed.f16", 0.0461, 0.0000},
    {"read.fixed.f32", 0.0211, 0.0063},
    {"read.k.bf16", 0.4429, kUnseen},
    {"read.k.f16", 0.4369, kUnseen},
    {"read.k.f32", 0.4083, kUnseen},
    {"read.k.i32", 0.3447, 0.0000},
    {"read.q.bf16", 0.0598, 0.1162},
    {"read.q.f16", 0.0547, 0.1280},
    {"read.q.f32", 0.0283, 0.1254},
    {"read.q.i32", kUnseen, 0.8470},
    {"read.qk.bf16", 0.6690, 2.0155},
    {"read.qk.f16", 0.6610, 2.0156},
    {"read.qk.f32", 0.9771, 2.0171},
    {"read.repeated.bf16", 0.0554, 0.1161},
    {"read.repeated.f16", 0.0515, 0.1272},
    {"read.repeated.f32", 0.0283, 0.1240},
    {"read.repeated.i32", 0.0000, 0.0908},
    {"read.repeated_k.bf16", 0.4781, 3.5864},
    {"read.repeated_k.f16", 0.4640, 3.6023},
    {"read.repeated_k.f32", 0.6735, 3.6862},
    {"read.repeated_k.i32", kUnseen, 0.8470},
    {"reciprocal", 1.3453, 2.2846},
    {"relu", 0.0984, 0.0804},
    {"rsqrt", 0.1041, 0.1709},
    {"sigmoid", 1.9470, 2.1404},
    {"sin", 0.2328, 0.2742},
    {"softplus", 0.9827, 0.3385},
    {"sqrt", 0.1064, 0.1023},
    {"sub", 0.0626, 0.0506},
    {"sub.i32", 0.0812, 0.1015},
    {"swish", 0.4876, 1.6067},
    {"tan", 0.7711, 0.6777},
    {"tanh", 0.1852, 0.1948},
};

constexpr TileCosts kForward{0.000843, 0.0007819}, kBackward{0.007512, 0.0021823};

}  // namespace

TileCosts tile_costs(Direction direction) { return direction == Direction::kForward ? kForward : kBackward; }

std::optional<double> score_cost(std::string_view work, Direction direction) {
  const auto found = std::ranges::lower_bound(kCosts, work, {}, &ScoreCost::work);
  if (found == std::end(kCosts) || found->work != work) return std::nullopt;
  const double cost = direction == Direction::kForward ? found->forward : found->backward;
  return cost < 0 ? std::nullopt : std::optional(cost);
}

}  // namespace scoremod::backend::cudnn
