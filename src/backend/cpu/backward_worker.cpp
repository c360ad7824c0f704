#include "backend/cpu/backward_worker.hpp"

#include <algorithm>
#include <cmath>

#include "backend/cpu/key_tile.hpp"
#include "backend/cpu/mask_tiles.hpp"
#include "backend/cpu/row_kernels.hpp"
#include "backend/cpu/sink.hpp"
#include "backend/cpu/tile_program.hpp"
#include "problem/call_dropout.hpp"

namespace scoremod::backend::cpu {
namespace {

/// Queries of one block. They are enough to make loading and storing dK's and dV's sums worthwhile. They are few enough
/// that the three score tiles of a block stay in the second-level cache.
constexpr std::size_t kBlockRows = 4 * kRowBlock;

class Worker {
 public:
  Worker(BackwardCall& call, Scratch& scratch)
      : call_(call),
        shape_(call.shape),
        mask_(call.compiled, call.analyzer, call.operands, call.parameters.offsets),
        program_(call.program, call.operands, call.parameters.offsets, kBlockRows, call.keys, scratch),
        operand_gradients_(call.operand_gradients, call.program, shape_.group, kBlockRows, call.keys, scratch),
        k_(shape_, call.keys, scratch),
        v_(scratch.take<float>(call.keys * shape_.padded_v)),
        v_panels_(scratch.take<float>(round_up(call.keys, kPanelColumns) * shape_.dim_v)),
        dk_(scratch.take<float>(call.keys * shape_.padded_qk)),
        dv_(scratch.take<float>(call.keys * shape_.padded_v)),
        q_(scratch.take<float>(kBlockRows * shape_.padded_qk)),
        o_(scratch.take<float>(kBlockRows * shape_.padded_v)),
        d_o_(scratch.take<float>(kBlockRows * shape_.padded_v)),
        dq_(scratch.take<float>(kBlockRows * shape_.padded_qk)),
        stride_(round_up(call.keys, kPanelColumns) + kLanePadding),
        scores_(scratch.take<float>(kBlockRows * stride_)),
        probabilities_(scratch.take<float>(kBlockRows * stride_)),
        adjoints_(scratch.take<float>(kBlockRows * stride_)),
        drops_(call.compiled.problem.dropout > 0),
        dropout_(call.compiled.problem, call.parameters.dropout_seed, call.parameters.dropout_offset,
                 call.parameters.offsets, call.tensors.operands),
        shares_(drops_ ? scratch.take<float>(kBlockRows * stride_) : probabilities_),
        wants_amax_(call.compiled.problem.amax_gradients) {}

  void run() {
    const std::int64_t units = shape_.batch * shape_.heads_kv * call_.tiles;
    for (;;) {
      unit_ = call_.next_unit.fetch_add(1, std::memory_order_relaxed);
      if (unit_ >= units || !run_unit()) break;
    }
    call_.amax_dq.raise(amax_dq_.bits());
    call_.amax_dk.raise(amax_dk_.bits());
    call_.amax_dv.raise(amax_dv_.bits());
  }

 private:
  /// False when the call was cancelled.
  bool run_unit() {
    const std::int64_t pair = unit_ / call_.tiles;
    batch_ = pair / shape_.heads_kv;
    head_kv_ = pair % shape_.heads_kv;
    tile_ = unit_ % call_.tiles;
    first_key_ = tile_ * static_cast<std::int64_t>(call_.keys);
    const std::int64_t keys = shape_.k.positions(batch_, operands()), queries = shape_.q.positions(batch_, operands());
    end_key_ = std::max(first_key_, std::min(first_key_ + static_cast<std::int64_t>(call_.keys), keys));
    begin_unit();
    constexpr auto kRows = static_cast<std::int64_t>(kBlockRows);
    const std::int64_t blocks = (shape_.seq_q + kRows - 1) / kRows;
    // Without keys, the first tile begins dq, and the last one stores it.
    const bool touches_dq = columns() > 0 || tile_ == 0 || tile_ + 1 == call_.tiles;
    const std::int64_t with_work = touches_dq ? (queries + kRows - 1) / kRows : 0;
    for (std::int64_t block = 0; block < with_work; ++block) {
      const std::int64_t query = block * kRows;
      const auto rows = static_cast<std::size_t>(std::min(queries - query, kRows));
      for (std::int64_t g = 0; g < shape_.group; ++g) {
        if (!run_block({batch_, head_kv_ * shape_.group + g, query, first_key_, rows, columns()}, block)) return false;
      }
      call_.passed[static_cast<std::size_t>(unit_)].raise(block + 1);
    }
    // Blocks after the sequence's end are passed all at once, but only after the unit before: later units wait for each
    // other through this one.
    if (with_work < blocks) {
      if (is_chained() && !call_.passed[static_cast<std::size_t>(unit_ - 1)].wait(blocks, call_.cancelled))
        return false;
      call_.passed[static_cast<std::size_t>(unit_)].raise(blocks);
    }
    store_rows(dk_, shape_.padded_qk, AttentionShape::rows(call_.tensors.dk, shape_.dk, batch_, head_kv_, operands()));
    store_rows(dv_, shape_.padded_v, AttentionShape::rows(call_.tensors.dv, shape_.dv, batch_, head_kv_, operands()));
    if (wants_amax_) {
      for (std::size_t r = 0; r < columns(); ++r) {
        amax_dk_.add(dk_ + r * shape_.padded_qk, 1, shape_.dim_qk);
        amax_dv_.add(dv_ + r * shape_.padded_v, 1, shape_.dim_v);
      }
    }
    if (!call_.finished.wait(unit_, call_.cancelled)) return false;
    operand_gradients_.commit_unit(batch_, head_kv_, first_key_, columns());
    call_.finished.raise(unit_ + 1);
    return true;
  }

  /// Whether blocks of the unit before come before this one's.
  bool is_chained() const { return tile_ > 0 || (call_.heads_share_rows && unit_ > 0); }

  Operands operands() const { return call_.tensors.operands; }
  std::size_t columns() const { return static_cast<std::size_t>(end_key_ - first_key_); }

  void begin_unit() {
    const RowSource k = AttentionShape::rows(call_.tensors.k, shape_.k, batch_, head_kv_, operands());
    const RowSource v = AttentionShape::rows(call_.tensors.v, shape_.v, batch_, head_kv_, operands());
    k_finite_ = k_.pack(k, first_key_, columns());
    pack_rows(v, first_key_, columns(), 1, v_, shape_.padded_v);
    transpose_to_panels(v_, columns(), shape_.dim_v, shape_.padded_v, v_panels_);
    std::fill_n(dk_, columns() * shape_.padded_qk, 0.0f);
    std::fill_n(dv_, columns() * shape_.padded_v, 0.0f);
    operand_gradients_.begin_unit();
    head_ = -1;
  }

  bool run_block(const GradientTile& tile, std::int64_t block) {
    const IndexSpan queries{tile.query, tile.query + static_cast<std::int64_t>(tile.rows)};
    const bool empty = tile.rows == 0 || tile.columns == 0;
    if (!empty) begin_head(tile.head);
    const auto needed = empty ? std::span<const NeededKeys>() : mask_.needed(queries, {first_key_, end_key_});
    const bool any = !needed.empty();
    if (any) compute_block(tile, needed);
    if (is_chained() && !call_.passed[static_cast<std::size_t>(unit_ - 1)].wait(block + 1, call_.cancelled))
      return false;
    add_dq(tile, any);
    if (any) operand_gradients_.commit_block(tile);
    return true;
  }

  void begin_head(std::int64_t head) {
    if (head == head_) return;
    head_ = head;
    mask_.begin_head(batch_, head);
    program_.begin_head(batch_, head);
    program_.begin_columns(first_key_, columns());
  }

  /// Adds to dk, dv and the unit's operand gradients, and leaves the block's part of dq in dq_.
  void compute_block(const GradientTile& tile, std::span<const NeededKeys> needed) {
    program_.begin_rows(tile.query, tile.rows);
    operand_gradients_.begin_block();
    const RowSource q = AttentionShape::rows(call_.tensors.q, shape_.q, batch_, head_, operands());
    const RowSource o = AttentionShape::rows(call_.tensors.o, shape_.o, batch_, head_, operands());
    const RowSource d_o = AttentionShape::rows(call_.tensors.d_o, shape_.d_o, batch_, head_, operands());
    const bool q_finite = pack_rows(q, tile.query, tile.rows, call_.parameters.scale, q_, shape_.padded_qk);
    if (call_.terms.deltas == nullptr) pack_rows(o, tile.query, tile.rows, 1, o_, shape_.padded_v);
    const bool d_o_finite = pack_rows(d_o, tile.query, tile.rows, 1, d_o_, shape_.padded_v);
    for (const NeededKeys& part : needed) multiply_rows(tile.rows, columns_of(part));
    for (std::size_t row = 0; row < tile.rows; ++row) differentiate_row(tile, row, needed);
    for (const NeededKeys& part : needed) {
      // Before the first keys of the block, dq_ holds nothing yet.
      add_products(tile.rows, columns_of(part), {q_finite, d_o_finite, &part == &needed.front()});
    }
  }

  /// The unit's keys.
  struct Columns {
    std::size_t first, count;
    bool masked;
  };
  Columns columns_of(const NeededKeys& part) const {
    return {static_cast<std::size_t>(part.keys.first - first_key_),
            static_cast<std::size_t>(part.keys.last - part.keys.first), part.masked && call_.program.keep_root};
  }

  struct BlockState {
    bool q_finite, d_o_finite, first;
  };

  /// Q K^T and dO V^T.
  void multiply_rows(std::size_t rows, const Columns& columns) const {
    const auto [first, count, masked] = columns;
    k_.scores(rows, {q_, shape_.padded_qk}, first, count, {scores_ + first, stride_});
    matrix_product(rows, {d_o_, shape_.padded_v}, {v_panels_, shape_.dim_v, first, count},
                   {adjoints_ + first, stride_});
  }

  void add_products(std::size_t rows, const Columns& columns, const BlockState& block) const {
    const auto [first, count, masked] = columns;
    const float* shares = shares_ + first;
    add_over_queries(shares, shares, d_o_, shape_.padded_v, block.d_o_finite, rows, count,
                     dv_ + first * shape_.padded_v);
    add_over_queries(adjoints_ + first, probabilities_ + first, q_, shape_.padded_qk, block.q_finite, rows, count,
                     dk_ + first * shape_.padded_qk);
    multiply_ds_k(rows, first, count, block.first);
  }

  /// From one row of scores and of dO V^T: the probabilities, and d loss / d score in place of dO V^T.
  void differentiate_row(const GradientTile& tile, std::size_t row, std::span<const NeededKeys> needed) {
    const std::int64_t query = shape_.query_row(batch_, tile.head, tile.query + static_cast<std::int64_t>(row));
    if (call_.makes_deltas) make_delta(tile, row, query, needed);
    const float delta = call_.terms.deltas != nullptr
                            ? call_.terms.deltas[query]
                            : dot(o_ + row * shape_.padded_v, d_o_ + row * shape_.padded_v, shape_.dim_v);
    for (const NeededKeys& part : needed) {
      const auto [first, count, masked] = columns_of(part);
      // The program's registers still hold the last columns of the delta's evaluation.
      if (!call_.makes_deltas)
        weigh(tile, row, columns_of(part));
      else if (needed.size() > 1)
        evaluate(row, columns_of(part));
      const float* p = probabilities_ + row * stride_ + first;
      float* adjoint = adjoints_ + row * stride_ + first;
      softmax_adjoint(p, delta, count, adjoint);
      program_.evaluate_adjoints(adjoint);
      operand_gradients_.add_row(program_, tile, row, first, count, p);
      // The identity's adjoint is upstream, which is in place already.
      const LaneSource score_adjoint = program_.at(*call_.program.score_adjoint);
      if (score_adjoint.data != adjoint) keep_where_probable(score_adjoint, p, count, adjoint);
    }
  }

  /// The mean of a row's dO V^T by its weights. The LSE's rounding is a factor of all weights: it is no part of a mean.
  void make_delta(const GradientTile& tile, std::size_t row, std::int64_t query, std::span<const NeededKeys> needed) {
    float sum = 0, weights = 0;
    for (const NeededKeys& part : needed) {
      const Columns columns = columns_of(part);
      weigh(tile, row, columns);
      const float* p = probabilities_ + row * stride_ + columns.first;
      sum += weighted_sum(p, adjoints_ + row * stride_ + columns.first, columns.count);
      weights += sum_of(p, columns.count);
    }
    if (const auto sink = sink_of(call_.compiled.problem, call_.operands, tile.head))
      weights += takes_all(*sink) ? 1.0f : std::exp(*sink - lse_.rounded - lse_.remainder);
    call_.terms.deltas[query] = weights != 0 ? sum / weights : 0;
  }

  void evaluate(std::size_t row, const Columns& columns) {
    program_.evaluate_row(row, columns.first, columns.count, scores_ + row * stride_ + columns.first, columns.masked);
  }

  void weigh(const GradientTile& tile, std::size_t row, const Columns& columns) {
    evaluate(row, columns);
    const VectorProgram& program = call_.program;
    const std::int64_t query = tile.query + static_cast<std::int64_t>(row);
    const LaneSource keep = columns.masked ? program_.at(*program.keep_root) : LaneSource{};
    const float* remainders = call_.terms.remainders;
    lse_ = {call_.tensors.lse[shape_.lse_row(batch_, tile.head, query, operands())],
            remainders != nullptr ? remainders[shape_.query_row(batch_, tile.head, query)] : 0};
    probabilities(program_.at(program.value_root), columns.masked ? &keep : nullptr, columns.count, lse_,
                  probabilities_ + row * stride_ + columns.first);
    if (drops_) drop(tile, row, columns.first, columns.count);
  }

  /// Writes the part of each probability that went into the output, and removes dropped elements from dO V^T.
  void drop(const GradientTile& tile, std::size_t row, std::size_t column, std::size_t count) {
    const float* p = probabilities_ + row * stride_ + column;
    float* shares = shares_ + row * stride_ + column;
    float* adjoint = adjoints_ + row * stride_ + column;
    const auto factor = static_cast<float>(dropout_.factor());
    std::fill_n(shares, count, factor);
    dropout_.drop(batch_, tile.head, tile.query + static_cast<std::int64_t>(row),
                  first_key_ + static_cast<std::int64_t>(column), count, shares);
    for (std::size_t i = 0; i < count; ++i) {
      const bool stays = shares[i] != 0;
      adjoint[i] = stays ? factor * adjoint[i] : 0;
      shares[i] = stays ? factor * p[i] : 0;
    }
    std::fill(shares + count, shares + round_up(count, kPanelColumns), 0.0f);
  }

  /// out += coefficients^T rows. Rows without a weight are skipped if `rows` are not finite.
  void add_over_queries(const float* coefficients, const float* weights, const float* rows, std::size_t stride,
                        bool finite, std::size_t count, std::size_t keys, float* out) const {
    MatrixProduct product(keys, stride, count, {coefficients, stride_}, {rows, stride}, {out, stride});
    product.a_transposed = true;
    multiply(product, finite, weights);
  }

  void multiply_ds_k(std::size_t rows, std::size_t column, std::size_t count, bool overwrite) const {
    const std::size_t stride = shape_.padded_qk;
    MatrixProduct product(rows, stride, count, {adjoints_ + column, stride_}, k_.rows_from(column), {dq_, stride});
    product.overwrite = overwrite;
    multiply(product, k_finite_, probabilities_ + column);
  }

  /// Skips terms without weight if B is not finite.
  static void multiply(const MatrixProduct& product, bool finite, const float* weights) {
    if (finite) {
      matrix_product(product);
    } else {
      matrix_product_of_weighted(product, weights);
    }
  }

  /// Adds the block's part to dq; the first tile of keys writes, and the last one leaves the result.
  void add_dq(const GradientTile& tile, bool any) {
    const RowTarget dq = AttentionShape::rows(call_.tensors.dq, shape_.dq, batch_, tile.head, operands());
    const float scale = call_.parameters.scale;
    const bool first = tile_ == 0, last = tile_ + 1 == call_.tiles;
    if (!any) std::fill_n(dq_, first ? tile.rows * shape_.padded_qk : 0, 0.0f);
    for (std::size_t r = 0; r < tile.rows; ++r) {
      const float* part = dq_ + r * shape_.padded_qk;
      const std::int64_t query = tile.query + static_cast<std::int64_t>(r);
      if (call_.dq_sums != nullptr) {
        float* sums =
            call_.dq_sums + shape_.query_row(batch_, tile.head, query) * static_cast<std::int64_t>(shape_.padded_qk);
        if (first)
          std::copy_n(part, shape_.padded_qk, sums);
        else if (any)
          add_to(part, shape_.padded_qk, sums);
        if (last) store_row(sums, scale, dq, query);
        if (last && wants_amax_) amax_dq_.add(sums, scale, shape_.dim_qk);
        continue;
      }
      if (first) {
        store_row(part, scale, dq, query);
        if (last && wants_amax_) amax_dq_.add(part, scale, shape_.dim_qk);
        continue;
      }
      auto* out = static_cast<float*>(dq.data) + query * dq.row_stride;
      for (std::size_t d = 0; d < shape_.dim_qk && any; ++d)
        out[static_cast<std::int64_t>(d) * dq.dim_stride] += scale * part[d];
      if (last && wants_amax_) amax_dq_.add(out, 1, shape_.dim_qk, dq.dim_stride);
    }
  }

  void store_rows(const float* rows, std::size_t stride, const RowTarget& target) const {
    for (std::size_t r = 0; r < columns(); ++r)
      store_row(rows + r * stride, 1, target, first_key_ + static_cast<std::int64_t>(r));
  }

  BackwardCall& call_;
  const AttentionShape& shape_;
  MaskTiles mask_;
  TileProgram program_;
  OperandGradientWorker operand_gradients_;
  KeyTile k_;
  float *v_, *v_panels_, *dk_, *dv_;
  float *q_, *o_, *d_o_, *dq_;
  std::size_t stride_;
  float *scores_, *probabilities_, *adjoints_;
  const bool drops_;
  const problem::CallDropout dropout_;
  float* shares_;  ///< the probabilities as they went into the output

  std::int64_t unit_ = 0, batch_ = 0, head_kv_ = 0, tile_ = 0, head_ = -1;
  std::int64_t first_key_ = 0, end_key_ = 0;
  bool k_finite_ = true;
  SplitLse lse_;  ///< of the row that was weighed last
  const bool wants_amax_;
  OwnLargestMagnitude amax_dq_, amax_dk_, amax_dv_;
};

}  // namespace

std::size_t backward_worker_bytes(BackwardCall& call) {
  Scratch scratch;
  const Worker worker(call, scratch);
  return scratch.used();
}

void run_backward_worker(BackwardCall& call, Scratch& scratch) { Worker(call, scratch).run(); }

}  // namespace scoremod::backend::cpu
