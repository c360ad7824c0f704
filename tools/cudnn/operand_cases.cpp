#include "tools/cudnn/operand_cases.hpp"

#include <utility>

#include "base/fail.hpp"
#include "tools/cudnn/mutations.hpp"

namespace scoremod::explorer {
namespace {

/// "[b, kv_idx]" and "b11k" for a subset of the axes.
struct AxesText {
  std::string list, key;
};

AxesText axes_text(unsigned subset) {
  const char* names[] = {"b", "h", "q_idx", "kv_idx"};
  AxesText text;
  for (unsigned axis = 0; axis < 4; ++axis) {
    const bool has = ((subset >> axis) & 1u) != 0;
    if (has) text.list += concat(text.list.empty() ? "" : ", ", names[axis]);
    text.key += has ? "bhqk"[axis] : '1';
  }
  text.list = "[" + text.list + "]";
  return text;
}

/// An operand added and multiplied, or (i32) as a number and compared.
void add_operand_uses(std::vector<PatternCase>& cases, const AxesText& axes, DType dtype, const std::string& suffix,
                      const PatternCase& like) {
  std::vector<std::string> uses{"value = score + x", "value = score * x"};
  if (dtype == DType::kI32) {
    uses = {"value = score + f32(x + b) * 0.25", "value = select(x - b >= 1, score, score * 0.25 - 1.0)"};
  }
  // One case is enough if it differs from another pattern only in its memory layout.
  if (dtype == DType::kF16 || dtype == DType::kBF16 || like.layout != OperandLayout::kDense) uses.erase(uses.begin());
  for (const std::string& use : uses) {
    PatternCase made = like;
    made.name = concat("operand.", axes.key, ".", to_string(dtype), suffix);
    made.program = concat("operand x: ", dtype == DType::kI32 ? "i32 " : "f32 ", axes.list, "\n", use);
    made.operand_dtype = dtype;
    cases.push_back(std::move(made));
  }
}

/// An operand of every subset of the axes, scalars among them.
void add_operands(std::vector<PatternCase>& cases) {
  for (unsigned subset = 0; subset < 16; ++subset) {
    const AxesText axes = axes_text(subset);
    cases.push_back({.name = concat("operand.", axes.key, ".bool"),
                     .program = concat("operand x: bool ", axes.list, "\nvalue = select(x, score, score * 0.25)")});
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI32}) {
      add_operand_uses(cases, axes, dtype, "", {});
      if (subset != 0 && dtype != DType::kF16)
        add_operand_uses(cases, axes, dtype, ".strided", {.layout = OperandLayout::kStrided});
    }
    // As declared, without the rows of stride 0 that the lowering adds.
    const bool rows_added = (subset & 4u) == 0 && subset != 2u;
    if (!rows_added) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32})
      add_operand_uses(cases, axes, dtype, ".as_declared", {.mutation = operands_as_declared()});
    for (const char* masks :
         {"\nvalue = score\nkeep = kv_idx < x", "\noperand y: i32 [b, q_idx]\nvalue = score\nkeep = x == y"}) {
      cases.push_back({.name = concat("operand.", axes.key, ".i32.as_declared"),
                       .program = concat("operand x: i32 ", axes.list, masks),
                       .mutation = operands_as_declared()});
    }
  }
}

/// A bias whose gradient cuDNN writes, under a band, beside other terms, and inside functions.
void add_operand_gradients(std::vector<PatternCase>& cases) {
  const char* const values[] = {"value = score + x", "value = score + x\nkeep = q_idx >= kv_idx",
                                "value = x + score + f32(kv_idx - q_idx) * 0.05\nkeep = (q_idx + kv_idx) % 3 != 0"};
  for (unsigned batch_and_head = 0; batch_and_head < 4; ++batch_and_head) {
    const AxesText axes = axes_text(12u | batch_and_head);
    const auto add_values = [&](const char* ending, GradientDtype dtype, OperandLayout layout) {
      for (const char* value : values) {
        PatternCase made{.layout = layout, .operand_gradient = dtype};
        made.name = concat("operand_gradient.", axes.key, ending);
        made.program = concat("operand x: f32 ", axes.list, "\n", value);
        cases.push_back(std::move(made));
      }
    };
    add_values("", GradientDtype::kOfProblem, OperandLayout::kDense);
    add_values(".strided", GradientDtype::kOfProblem, OperandLayout::kStrided);
    add_values(".other_half", GradientDtype::kOtherHalf, OperandLayout::kDense);
  }
  cases.push_back({.name = "operand_gradient.after_cap",
                   .program = "operand x: f32 [h, q_idx, kv_idx]\nvalue = 5.0 * tanh(score / 5.0) + x",
                   .operand_gradient = GradientDtype::kOfProblem});
}

}  // namespace

std::vector<PatternCase> operand_cases() {
  std::vector<PatternCase> cases;
  add_operands(cases);
  add_operand_gradients(cases);
  return cases;
}

}  // namespace scoremod::explorer
