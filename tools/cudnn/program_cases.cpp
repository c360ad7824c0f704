#include "tools/cudnn/program_cases.hpp"

#include <utility>

#include "base/fail.hpp"
#include "tools/cudnn/mutations.hpp"

namespace scoremod::explorer {
namespace {

struct NamedProgram {
  const char* name;
  const char* program;
};

constexpr NamedProgram kMasks[] = {
    {"mask.strict", "value = score\nkeep = q_idx > kv_idx"},
    {"mask.anti_causal", "value = score\nkeep = q_idx <= kv_idx"},
    {"mask.strict_anti_causal", "value = score\nkeep = q_idx < kv_idx"},
    {"mask.symmetric_band", "value = score\nkeep = abs(q_idx - kv_idx) <= 20"},
    {"mask.one_diagonal", "value = score\nkeep = q_idx == kv_idx"},
    {"mask.bottom_right", "value = score\nkeep = q_idx + {shift} >= kv_idx"},
    {"mask.bottom_right_window", "value = score\nkeep = q_idx + {shift} >= kv_idx & q_idx + {shift} - kv_idx < 50"},
    {"mask.prefix", "value = score\nkeep = kv_idx < 17 | q_idx >= kv_idx"},
    {"mask.prefix_per_batch", "operand p: i32 [b]\nvalue = score\nkeep = kv_idx < p | q_idx >= kv_idx"},
    {"mask.padding", "operand n: i32 [b]\nvalue = score\nkeep = kv_idx < n"},
    {"mask.padding_of_heads", "operand n: i32 [b, h]\nvalue = score\nkeep = kv_idx < n"},
    {"mask.padding+causal", "operand n: i32 [b]\nvalue = score\nkeep = kv_idx < n & q_idx >= kv_idx"},
    {"mask.padding_of_queries", "operand n: i32 [b]\nvalue = score\nkeep = q_idx < n & kv_idx < n"},
    {"mask.padding_scalar", "operand n: i32 []\nvalue = score\nkeep = kv_idx < n"},
    {"mask.documents", "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y"},
    {"mask.documents+causal",
     "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y & q_idx >= kv_idx"},
    {"mask.documents+window",
     "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y & abs(q_idx - kv_idx) < 30"},
    {"mask.bool_keys", "operand m: bool [b, kv_idx]\nvalue = score\nkeep = m"},
    {"mask.bool_rows", "operand m: bool [b, h, q_idx]\nvalue = score\nkeep = m"},
    {"mask.bool_full", "operand m: bool [q_idx, kv_idx]\nvalue = score\nkeep = m"},
    {"mask.bool_scalar", "operand m: bool []\nvalue = select(m, score * 2.0, score)"},
    {"mask.empty", "value = score\nkeep = q_idx < 0"},
    {"mask.empty_rows", "value = score\nkeep = q_idx >= 20 & q_idx >= kv_idx"},
    {"mask.dilated", "value = score\nkeep = (q_idx - kv_idx) % 3 == 0 & abs(q_idx - kv_idx) <= 60"},
    {"mask.strided_keys", "value = score\nkeep = kv_idx % 4 == 0 | q_idx - kv_idx < 9 & q_idx >= kv_idx"},
};

constexpr NamedProgram kValues[] = {
    {"index.sum", "value = score + f32(q_idx + kv_idx) * 0.03125"},
    {"index.difference", "value = score + f32(q_idx - kv_idx) * 0.03125"},
    {"index.product", "value = score + f32(q_idx * 2 - kv_idx * 3) * 0.03125"},
    {"index.distance", "value = score - f32(abs(q_idx - kv_idx)) * 0.03125"},
    {"index.extrema", "value = score - f32(max(q_idx, kv_idx) - min(q_idx, 40)) * 0.03125"},
    {"index.batch_and_head", "value = score + f32(h - b * 2) * 0.5"},
    {"index.minus_score", "value = f32(q_idx - kv_idx) * 0.03125 - score"},
    {"index.or_score", "value = select(q_idx * 2 - kv_idx > 3, f32(kv_idx) * 0.03125, score)"},
    {"index.against_score", "value = select(f32(q_idx - kv_idx) * 0.03125 > score, score, score * 0.5 - 1.0)"},
    {"index.to_the_score", "value = pow(f32(h + 2) * 0.5, tanh(score))"},
    {"index.comparison", "value = select(q_idx * 2 - kv_idx > 3, score, score * 0.25 - 1.0)"},
    {"index.logic",
     "value = score\nkeep = (q_idx * 2 - kv_idx >= 3 & q_idx + kv_idx < 200) | kv_idx < 5 | !(kv_idx < 190)"},
    {"lse.very_negative", "value = score - 200.0"},
    {"lse.very_negative+causal", "value = score - 200.0\nkeep = q_idx >= kv_idx"},
    {"lse.very_negative+documents",
     "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score - 200.0\nkeep = x == y"},
    {"lse.very_negative+bias", "operand x: f32 [h, q_idx, kv_idx]\nvalue = score * 0.5 + x - 300.0"},
    {"lse.very_negative+padding", "operand n: i32 [b]\nvalue = score - 200.0\nkeep = kv_idx < n"},
    {"value.without_score", "operand x: f32 [h, q_idx, kv_idx]\nvalue = x * 2.0"},
    {"adjoint.zero", "value = floor(score * 4.0)"},
    {"adjoint.zero_on_a_side", "value = select(score > 0.0, score * score, 1.0)"},
    {"scalar.temperature", "operand t: f32 []\nvalue = score * exp(t)"},
    {"scalar.two", "operand t: f32 []\noperand c: f32 []\nvalue = (c + 3.0) * tanh(score * t / (c + 3.0))"},
    {"scalar.division", "operand t: f32 []\nvalue = score / t"},
    {"computed.along_q", "value = score + f32(q_idx % 7)"},
    {"computed.along_kv", "value = score + f32(kv_idx // 5 % 7) * 0.25"},
    {"computed.along_b_h", "table t: f32 rank 2\nvalue = score * t[b, h]"},
    {"computed.along_q_kv", "table t: f32 rank 2\nvalue = score * t[q_idx // 9, kv_idx // 11]"},
    {"computed.many_rows",
     "table t: f32 rank 1\nvalue = score * t[q_idx % 7] * t[q_idx % 5] * t[q_idx % 3] + t[q_idx % 9] * tanh(score) + "
     "t[q_idx % 11] * sin(score)"},
    {"computed.mask_along_kv", "value = score\nkeep = kv_idx % 5 != 2"},
    {"computed.everything",
     "table t: f32 rank 1\nvalue = select(q_idx % 3 == 1, tanh(score) * t[h], score) + t[kv_idx % 8 + q_idx % 8]\n"
     "keep = q_idx >= kv_idx"},
    {"sign.score", "value = score + sign(score) * 2.0"},
    {"round.score", "value = score + round(score * 2.0)"},
    {"mod.f32", "value = score % 3.0 + score * 0.5"},
    {"exp2.score", "value = exp2(score * 0.25)"},
    {"expm1.score", "value = expm1(score * 0.25)"},
    {"log1p.score", "value = log1p(abs(score))"},
    {"select.bool", "value = select(select(score > 0.0, q_idx * 2 > kv_idx, kv_idx < 40), score, score * 0.5)"},
    {"xnor.bool", "value = select((score > 0.0) == (q_idx * 2 > kv_idx), score, score * 0.5)"},
};

}  // namespace

std::vector<PatternCase> program_cases() {
  std::vector<PatternCase> cases;
  const auto add = [&](const std::string& pattern, const std::string& program) -> PatternCase& {
    cases.push_back({.name = pattern, .program = program, .in_right_patterns = true});
    return cases.back();
  };
  for (const NamedProgram& mask : kMasks) {
    add(mask.name, mask.program);
    add(concat("offsets.", mask.name), mask.program).offsets = {1, 2, 37, 11};
  }
  for (const NamedProgram& value : kValues) {
    add(value.name, value.program);
    add(concat("offsets.", value.name), value.program).offsets = {1, 2, 37, 11};
  }
  // An operand that depends on the difference of the indices only, as a tensor with an entry for each difference.
  add("operand.11qk.f32.diagonal", "table t: f32 rank 1\nvalue = score + t[kv_idx - q_idx + 16]").mutation =
      along_the_diagonal(false);
  add("operand.1hqk.f32.diagonal", "table t: f32 rank 2\nvalue = score * t[h, kv_idx - q_idx + 16]").mutation =
      along_the_diagonal(true);
  return cases;
}

}  // namespace scoremod::explorer
