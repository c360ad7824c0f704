#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/inputs.hpp"

#include "check/check_case.hpp"

namespace scoremod::test {

/// The call in a decode kernel's text that computes rows once more where they are not finite. Without it faults show.
inline constexpr const char* kRowsAgain = "    forward_row(p, scratch, own.b, of.h, of.q, crew);\n";

struct PagedSizes {
  std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim, page;
};
/// A decode over pages in bf16, whose operands have their default specs.
checking::CheckCase paged_case(const PagedSizes& sizes, const std::string& program = "value = score * 0.5");

/// The case with varlen queries: those of a batch lie one sequence after the other, and some sequences have none.
checking::CheckCase with_ragged_queries(checking::CheckCase test);

/// The operand of this name, which is there.
OwnedOperand& operand_of(ProblemInputs& inputs, const char* name);

/// The inputs of a seed, with these lengths of keys.
ProblemInputs inputs_of(const checking::CheckCase& test, const std::vector<std::int32_t>& lengths,
                        std::uint64_t seed = 0);

struct PagedDecodeCase {
  checking::CheckCase test;
  std::vector<std::int32_t> lengths;
  int rows, ctas;  ///< of a kernel's tile, and of a persistent kernel
};
/// A random decode, over positions that end where a sequence's keys end.
PagedDecodeCase random_paged_decode(std::uint64_t seed);

}  // namespace scoremod::test
