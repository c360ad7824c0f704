#include "passes/classify_mask.hpp"

namespace scoremod::passes {

MaskClass classify_mask(const Program& program, const MaskContext&) {
  MaskClass out;
  if (program.keep() == kNoNode) return out;
  out.kind = MaskKind::kGeneral;
  MaskTerm& term = out.terms.emplace_back();
  term.node = program.keep();
  return out;
}

}  // namespace scoremod::passes
