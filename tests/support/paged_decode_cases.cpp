#include "support/paged_decode_cases.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>

#include "base/concat.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::test {
namespace {

constexpr const char* kLength = "operand lengths_kv: i32 [b]\n";
/// Over positions that end where a sequence's keys end.
const std::string kPrograms[] = {
    "value = score",
    "value = tanh(score * 0.2) * 5.0\nkeep = kv_idx % 7 != 3",
    concat(kLength, "value = score\nkeep = kv_idx <= q_idx + lengths_kv - 3"),
    concat(kLength, "value = score + 0.01 * f32(kv_idx - q_idx)\nkeep = kv_idx + 90 > q_idx + lengths_kv"),
    "value = score\nkeep = kv_idx <= q_idx + 150 & kv_idx + 70 > q_idx",
    "value = score\nkeep = score < 3.0",
};

}  // namespace

checking::CheckCase paged_case(const PagedSizes& sizes, const std::string& program) {
  checking::CheckCase test;
  AttentionProblem& p = test.problem;
  p.batch = sizes.batch;
  p.heads_q = sizes.heads_q;
  p.heads_kv = sizes.heads_kv;
  p.seq_q = sizes.seq_q;
  p.seq_kv = sizes.seq_kv;
  p.dim_qk = p.dim_v = sizes.dim;
  p.dtype = DType::kBF16;
  p.stats = true;
  p.backward = p.index_offsets = false;
  p.lengths.kv = true;
  const std::int64_t pages = (sizes.seq_kv + sizes.page - 1) / sizes.page;
  p.paged = PagedKeys{sizes.page, sizes.batch * pages + 3, pages};
  p.program = Program::parse(program);
  for (const OperandDecl& decl : p.program.operands()) p.operands.push_back(problem::default_spec(p, decl));
  p = problem::with_implied_operands(std::move(p));
  test.name = program;
  return test;
}

checking::CheckCase with_ragged_queries(checking::CheckCase test) {
  AttentionProblem& p = test.problem;
  p.tokens_q = std::max<std::int64_t>(p.batch * p.seq_q * 3 / 5, 1);
  p.q = p.o = {Layout::kTHD, {}};
  p = problem::with_implied_operands(std::move(p));
  return test;
}

OwnedOperand& operand_of(ProblemInputs& inputs, const char* name) {
  return *std::ranges::find(inputs.operands, name, &OwnedOperand::name);
}

ProblemInputs inputs_of(const checking::CheckCase& test, const std::vector<std::int32_t>& lengths, std::uint64_t seed) {
  RandomInputOptions options;
  options.seed = seed;
  ProblemInputs inputs = random_inputs(test.problem, options);
  OwnedOperand& operand = operand_of(inputs, problem::kLengthsOfKeys);
  if (operand.bytes.size() != lengths.size() * sizeof(std::int32_t)) fail_bug("other lengths than sequences");
  std::memcpy(operand.bytes.data(), lengths.data(), operand.bytes.size());
  return inputs;
}

PagedDecodeCase random_paged_decode(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t end) { return static_cast<std::int64_t>(random() % end); };
  const std::int64_t pages[] = {1, 16, 24, 64, 256};
  const std::int64_t heads_kv = 1 + below(3), longest = 1 + below(900);
  PagedDecodeCase made{paged_case({1 + below(9), heads_kv * (1 + below(4)), heads_kv, 1 + below(16), longest,
                                   below(2) == 0 ? 32 : 64, pages[below(std::size(pages))]},
                                  kPrograms[below(std::size(kPrograms))]),
                       {},
                       16 << below(3),
                       static_cast<int>(1 + below(30))};
  AttentionProblem& p = made.test.problem;
  p.sink = below(3) == 0 ? Sink::kOffByOne : Sink::kNone;
  p.max_logit = below(3) == 0;
  if (below(3) == 0) made.test = with_ragged_queries(std::move(made.test));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t kind = below(4);
    made.lengths.push_back(static_cast<std::int32_t>(kind == 0 ? 0 : kind == 1 ? longest : below(longest + 1)));
  }
  return made;
}

}  // namespace scoremod::test
