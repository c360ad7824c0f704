#include "runtime/operand_data.hpp"

#include <algorithm>
#include <cmath>

#include "base/element.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::runtime {
namespace {

/// An operand of i32 of up to two dimensions, on the host.
class Integers {
 public:
  Integers(const AttentionProblem& problem, const char* name, std::span<const void* const> operands) {
    const auto number = problem::operand_number(problem.program, name);
    if (!number) fail_bug("a problem whose program does not declare '", name, "'");
    data_ = operands[*number];
    strides_ = problem::strides_of(problem::spec_of(problem, *number));
  }

  std::int64_t at(std::int64_t i, std::int64_t j = 0) const {
    return load_element<std::int64_t>(data_, DType::kI32, i * strides_[0] + j * strides_[1]);
  }

 private:
  const void* data_ = nullptr;
  std::array<std::int64_t, kMaxTableRank> strides_{};
};

/// A shard's lengths may be beyond its part: they are the whole sequence's.
void check_lengths(const char* name, const Integers& lengths, std::int64_t batch, std::int64_t size, bool is_shard) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = lengths.at(b);
    if (length >= 0 && (length <= size || is_shard)) continue;
    fail_argument("operand '", name, "': expected lengths from 0 to ", size, ", the size of the sequence, found ",
                  length, " of batch ", b);
  }
}

void check_offsets(const char* name, const Integers& offsets, std::int64_t batch, std::int64_t tokens,
                   const char* size_field, std::int64_t size) {
  if (offsets.at(0) != 0) {
    fail_argument("operand '", name, "': expected offsets that begin at 0, found ", offsets.at(0));
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t first = offsets.at(b), end = offsets.at(b + 1);
    if (end < first) {
      fail_argument("operand '", name, "': expected offsets that do not descend, found ", end, " after ", first,
                    " at the end of sequence ", b);
    }
    if (end - first > size) {
      fail_argument("operand '", name, "': expected sequences of at most ", size_field, " (", size, ") tokens, found ",
                    end - first, " in sequence ", b);
    }
  }
  if (offsets.at(batch) != tokens) {
    fail_argument("operand '", name, "': expected a last offset of ", tokens, ", the number of tokens, found ",
                  offsets.at(batch));
  }
}

void check_pages(const char* name, const Integers& pages, const Integers& lengths, const AttentionProblem& problem) {
  const auto& [block_size, blocks, blocks_per_sequence] = *problem.paged;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t keys = std::min(lengths.at(b), problem.seq_kv);
    for (std::int64_t page = 0; page * block_size < keys; ++page) {
      const std::int64_t block = pages.at(b, page);
      if (block >= 0 && block < blocks) continue;
      fail_argument("operand '", name, "': expected blocks from 0 to ", blocks - 1, ", found ", block, " at [", b, ", ",
                    page, "], which holds keys below the sequence's length of ", lengths.at(b));
    }
  }
}

/// Checks the scales of FP8 tensors, but not those of blocks, which are data as the tensors are. A forward need not
/// pass d_o's.
void check_tensor_scales(const AttentionProblem& problem, std::span<const void* const> operands) {
  const std::vector<OperandDecl>& decls = problem.program.operands();
  for (std::size_t i = 0; i < decls.size(); ++i) {
    const std::string& name = decls[i].name;
    if (operands[i] == nullptr || !problem::is_tensor_scale(problem, name) || problem::has_block_scales(problem, name))
      continue;
    const OperandSpec& spec = problem::spec_of(problem, static_cast<std::uint32_t>(i));
    problem::tensor_of(spec.name, spec).for_each_offset([&](std::int64_t, std::int64_t offset) {
      const auto factor = load_element<double>(operands[i], DType::kF32, offset);
      if (factor > 0 && std::isfinite(factor)) return;
      fail_argument("operand '", name, "': expected a positive finite factor, found ", factor,
                    "; a tensor of nothing but zeros has factor 1");
    });
  }
}

}  // namespace

void check_operand_data(const AttentionProblem& problem, std::span<const void* const> operands,
                        const backend::MemorySpace& memory) {
  if (memory.kind() != MemoryKind::kHost) return;
  const auto integers = [&](const char* name) { return Integers(problem, name, operands); };
  check_tensor_scales(problem, operands);
  const bool is_shard = problem.index_offsets;
  const char* name = problem::kLengthsOfQueries;
  if (problem.lengths.q) check_lengths(name, integers(name), problem.batch, problem.seq_q, is_shard);
  name = problem::kLengthsOfKeys;
  if (problem.lengths.kv) check_lengths(name, integers(name), problem.batch, problem.seq_kv, is_shard);
  name = problem::kOffsetsOfQueries;
  if (problem.tokens_q) {
    check_offsets(name, integers(name), problem.batch, *problem.tokens_q, "seq_q", problem.seq_q);
  }
  name = problem::kOffsetsOfKeys;
  if (problem.tokens_kv) {
    check_offsets(name, integers(name), problem.batch, *problem.tokens_kv, "seq_kv", problem.seq_kv);
  }
  if (!problem.paged) return;
  for (const char* table : {problem::kPagesOfKeys, problem::kPagesOfValues})
    check_pages(table, integers(table), integers(problem::kLengthsOfKeys), problem);
}

}  // namespace scoremod::runtime
