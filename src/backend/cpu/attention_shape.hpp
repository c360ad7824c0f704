#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "scoremod/problem.hpp"

#include "backend/backend.hpp"
#include "backend/cpu/matrix_product.hpp"
#include "backend/cpu/pack.hpp"
#include "problem/block_scales.hpp"
#include "problem/row_addressing.hpp"
#include "problem/stored_unit.hpp"

namespace scoremod::backend::cpu {

inline std::size_t round_up(std::size_t count, std::size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

/// A call's operands, in the order of the declarations.
using Operands = std::span<const void* const>;

/// Addresses and scales of a tensor's rows.
struct TensorRows : problem::RowAddressing {
  TensorRows(const AttentionProblem& problem, problem::TensorRole role)
      : RowAddressing(problem, role), unit(problem, role), block_scales(problem::block_scales_of(problem, role)) {}

  problem::StoredUnit unit;
  std::optional<problem::BlockScales> block_scales;
};

/// The sizes and addressing of a problem in the form that the tiled path works with.
struct AttentionShape {
  explicit AttentionShape(const AttentionProblem& p)
      : batch(p.batch),
        heads_q(p.heads_q),
        heads_kv(p.heads_kv),
        group(p.heads_q / p.heads_kv),
        seq_q(p.seq_q),
        seq_kv(p.seq_kv),
        dim_qk(static_cast<std::size_t>(p.dim_qk)),
        dim_v(static_cast<std::size_t>(p.dim_v)),
        padded_qk(round_up(dim_qk, kColumnAlignment)),
        padded_v(round_up(dim_v, kColumnAlignment)),
        q(p, problem::TensorRole::kQ),
        k(p, problem::TensorRole::kK),
        v(p, problem::TensorRole::kV),
        o(p, problem::TensorRole::kO),
        d_o(p, problem::TensorRole::kDO),
        dq(p, problem::TensorRole::kDQ),
        dk(p, problem::TensorRole::kDK),
        dv(p, problem::TensorRole::kDV),
        lse(p, problem::TensorRole::kLse) {}

  /// The rows of one batch and head of a tensor, in a call with these operands.
  static RowSource rows(const void* data, const TensorRows& tensor, std::int64_t b, std::int64_t h, Operands operands) {
    const problem::HeadRows rows = tensor.rows(b, h, operands);
    const std::int64_t offset = rows.first * static_cast<std::int64_t>(size_of(tensor.dtype()));
    return {static_cast<const std::byte*>(data) + offset,
            tensor.dtype(),
            rows.row_step,
            tensor.element_step(),
            static_cast<std::size_t>(tensor.shape().dim),
            rows.table,
            static_cast<float>(tensor.unit.of(operands, h)),
            tensor.block_scales ? tensor.block_scales->of(b, h, operands) : problem::RowScales{}};
  }
  /// The rows of a tensor that is written, which is never paged.
  static RowTarget rows(void* data, const TensorRows& tensor, std::int64_t b, std::int64_t h, Operands operands) {
    const problem::HeadRows rows = tensor.rows(b, h, operands);
    const std::int64_t offset = rows.first * static_cast<std::int64_t>(size_of(tensor.dtype()));
    return {static_cast<std::byte*>(data) + offset,
            tensor.dtype(),
            rows.row_step,
            tensor.element_step(),
            static_cast<std::size_t>(tensor.shape().dim),
            static_cast<float>(tensor.unit.scale(operands))};
  }

  /// The place of a query row in the LSE.
  std::int64_t lse_row(std::int64_t b, std::int64_t h, std::int64_t q_idx, Operands operands) const {
    return lse.rows(b, h, operands).row(q_idx);
  }
  /// Rows of the LSE.
  std::int64_t lse_rows() const {
    const problem::TensorShape& shape = lse.memory_shape();
    return shape.batch * shape.heads * shape.sequence;
  }

  /// The place of a query row in a dense [batch, heads_q, seq_q].
  std::int64_t query_row(std::int64_t b, std::int64_t h, std::int64_t q_idx) const {
    return (b * heads_q + h) * seq_q + q_idx;
  }

  std::int64_t batch, heads_q, heads_kv, group, seq_q, seq_kv;
  std::size_t dim_qk, dim_v;
  std::size_t padded_qk, padded_v;  ///< multiples of kColumnAlignment: the row strides of packed tiles
  TensorRows q, k, v, o, d_o, dq, dk, dv, lse;
};

}  // namespace scoremod::backend::cpu
