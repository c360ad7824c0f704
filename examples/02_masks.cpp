// A mask_mod says which keys a query may see. Masks combine with and_masks, or_masks, not_mask, and with && || !.
#include <cstdio>

#include <scoremod/dsl.hpp>

using namespace scoremod;

int main() {
  const MaskMod causal = [](Index i) { return i.q >= i.kv; };
  const MaskMod window = [](Index i) { return abs(i.q - i.kv) <= 128; };
  const MaskMod first_keys = [](Index i) { return i.kv < 4; };
  const Program program = trace(causal && (window || first_keys));
  std::printf("%s\n", program.to_string().c_str());

  // Operands are named tensors that broadcast over the axes that they do not have: here one length for each batch.
  const Operand<Int> lengths("lengths", {Axis::kBatch});
  const Program padded = trace(and_masks(causal, [lengths](Index i) { return i.kv < lengths; }));
  std::printf("%s\n", padded.to_string().c_str());

  return program.keep() != kNoNode && padded.operands().size() == 1 ? 0 : 1;
}
