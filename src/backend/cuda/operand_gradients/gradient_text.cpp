#include "backend/cuda/operand_gradients/gradient_text.hpp"

#include "backend/cuda/text/exact_sum.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr std::array<const char*, kAxisCount> kIndexNames{"b", "h", "q", "kv"};

}  // namespace

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    default: fail_bug("a gradient of a dtype that has none");
  }
}

const char* sum_type(const GradientTarget& target) { return target.exact ? "long long" : "float"; }
std::int64_t sum_words(const GradientTarget& target) {
  return target.exact ? static_cast<std::int64_t>(kExactSumWords) : 1;
}
std::string output_name(const GradientTarget& target) { return concat("output_", target.operand); }
std::string named(const char* what, const GradientTarget& target) { return concat(what, "_", target.operand); }

std::vector<std::string> own_indices(const GradientTarget& target) {
  std::vector<std::string> indices;
  for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
    if (target.axes[axis]) indices.emplace_back(kIndexNames[axis]);
  }
  return indices;
}

std::string entry_number(const GradientTarget& target, const std::array<std::string, kAxisCount>& indices) {
  std::string text = "0LL";
  for (std::size_t d = 0; d < kAxisCount; ++d) {
    if (target.extents[d] > 1) text = concat("(", text, ") * ", target.extents[d], " + ", indices[d]);
  }
  return text;
}

std::string reduced_entry(const GradientTarget& target) { return entry_number(target, {"b", "h", "q", "kv"}); }

std::string block_entry(const GradientTarget& target, const char* column) {
  const std::string b = target.extents[0] > 1 ? "b" : "0", h = target.extents[1] > 1 ? "h" : "0";
  return concat("((", b, " * ", target.extents[1], "LL + ", h, ") * block_rows + r) * block_columns + ", column);
}

}  // namespace scoremod::backend::cuda
