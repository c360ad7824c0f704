// Ready-made modifiers, in C++ and by name, alone and combined.
#include <cstdio>
#include <vector>

#include <scoremod/zoo.hpp>

using namespace scoremod;

int main() {
  // In C++ they are score_mods and mask_mods like any other.
  const Program program = trace(compose(zoo::alibi(), zoo::soft_cap(30)), and_masks(zoo::causal(), zoo::padding()));
  std::printf("%s\n", program.to_string().c_str());
  std::printf("ALiBi's slopes for 6 heads:");
  for (const float slope : zoo::alibi_slopes(6)) std::printf(" %g", slope);
  std::printf("\n\n");

  // By name, for files and tools: the entry says which operands it needs, and their shapes.
  const zoo::Sizes sizes{.batch = 2, .heads = 6, .seq_q = 128, .seq_kv = 128};
  const std::vector<zoo::Modifier> modifiers{zoo::make("alibi", {}, sizes),
                                             zoo::make("soft_cap", {{"cap", 30.0}}, sizes),
                                             zoo::make("causal", {}, sizes), zoo::make("padding", {}, sizes)};
  const zoo::Combination combination = zoo::combine(modifiers);
  for (const zoo::OperandNeed& operand : combination.operands) {
    std::printf("operand %s: %s [", operand.name.c_str(), to_string(operand.dtype));
    for (const std::int64_t extent : operand.shape) std::printf(" %lld", static_cast<long long>(extent));
    std::printf(" ]\n");
  }

  std::printf("\nall of them:\n");
  for (const zoo::Entry& entry : zoo::entries()) {
    std::printf("  %-9s  %-21s  %s\n", zoo::to_string(entry.kind), entry.name.c_str(), entry.summary.c_str());
  }
  return combination.program == program ? 0 : 1;
}
