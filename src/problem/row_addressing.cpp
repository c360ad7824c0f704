#include "problem/row_addressing.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::problem {

RowAddressing::Places RowAddressing::places(const AttentionProblem& problem, const char* name) {
  const auto number = operand_number(problem.program, name);
  if (!number) fail_bug("rows that '", name, "' places, in a problem whose program does not declare it");
  const auto strides = strides_of(spec_of(problem, *number));
  return {*number, strides[0], strides[1]};
}

RowAddressing::RowAddressing(const AttentionProblem& problem, TensorRole role)
    : shape_(shape_of(problem, role)),
      memory_shape_(memory_shape_of(problem, role)),
      strides_(strides_of(problem, role)),
      dtype_(dtype_of(problem, role)) {
  const bool of_queries = is_query_like(role);
  if (of_queries ? problem.tokens_q.has_value() : problem.tokens_kv.has_value()) {
    offsets_ = places(problem, of_queries ? kOffsetsOfQueries : kOffsetsOfKeys);
  } else if (problem.paged && !of_queries) {
    pages_ = places(problem, primal_of(role) == TensorRole::kK ? kPagesOfKeys : kPagesOfValues);
    lengths_ = places(problem, kLengthsOfKeys);
  }
}

HeadRows RowAddressing::rows(std::int64_t batch, std::int64_t head, std::span<const void* const> operands) const {
  HeadRows rows{head * strides_.head, strides_.sequence, {}};
  if (offsets_) {
    rows.first += *offsets_->at(operands, batch) * strides_.sequence;
  } else if (pages_) {
    rows.table = {pages_->at(operands, batch), pages_->inner, memory_shape_.sequence, strides_.batch};
  } else {
    rows.first += batch * strides_.batch;
  }
  return rows;
}

std::int64_t RowAddressing::positions(std::int64_t batch, std::span<const void* const> operands) const {
  if (offsets_) {
    const std::int64_t tokens = std::int64_t{*offsets_->at(operands, batch + 1)} - *offsets_->at(operands, batch);
    return std::clamp<std::int64_t>(tokens, 0, shape_.sequence);
  }
  if (pages_) return std::clamp<std::int64_t>(*lengths_->at(operands, batch), 0, shape_.sequence);
  return shape_.sequence;
}

std::string RowAddressing::row_expression(const std::string& batch, const std::string& head,
                                          const std::string& position) const {
  if (!is_dense()) fail_bug("an expression of the rows of a tensor that is not dense");
  return concat("(", batch, ") * ", strides_.batch, "LL + (", head, ") * ", strides_.head, "LL + (", position, ") * ",
                strides_.sequence, "LL");
}

}  // namespace scoremod::problem
