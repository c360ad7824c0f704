#include "backend/cpu/forward_worker.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/key_tile.hpp"
#include "backend/cpu/mask_tiles.hpp"
#include "backend/cpu/row_kernels.hpp"
#include "backend/cpu/row_terms.hpp"
#include "backend/cpu/sink.hpp"
#include "backend/cpu/tile_program.hpp"
#include "problem/call_dropout.hpp"

namespace scoremod::backend::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One thread's buffers. A unit of work is a block of queries of one (batch, head); it runs over the tiles of keys with
/// an online softmax. Each row keeps its running max, the sum of exp(score - max), and the output to be divided by that
/// sum.
class Worker {
 public:
  Worker(ForwardCall& call, Scratch& scratch)
      : call_(call),
        shape_(call.shape),
        mask_(call.compiled, call.analyzer, call.operands, call.parameters.offsets),
        program_(call.program, call.operands, call.parameters.offsets, call.queries, call.keys, scratch),
        q_(scratch.take<float>(call.queries * shape_.padded_qk)),
        k_(shape_, call.keys, scratch),
        v_(scratch.take<float>(makes_output() ? call.keys * shape_.padded_v : 0)),
        scores_stride_(round_up(call.keys, kPanelColumns) + kLanePadding),
        scores_(scratch.take<float>(kRowBlock * scores_stride_)),
        output_(scratch.take<float>(makes_output() ? call.queries * shape_.padded_v : 0)),
        largest_(scratch.take<float>(call.queries)),
        sum_(scratch.take<float>(call.queries)),
        max_logit_(scratch.take<float>(makes_max_logit() ? call.queries : 0)),
        d_o_(scratch.take<float>(call.terms.arrays.deltas != nullptr ? shape_.padded_v : 0)),
        dropout_(call.compiled.problem, call.parameters.dropout_seed, call.parameters.dropout_offset,
                 call.parameters.offsets, call.tensors.operands) {}

  void run() {
    const auto queries = static_cast<std::int64_t>(call_.queries);
    const std::int64_t blocks = (shape_.seq_q + queries - 1) / queries;
    const std::int64_t heads = shape_.batch * shape_.heads_q;
    for (;;) {
      const std::int64_t unit = call_.next_unit.fetch_add(1, std::memory_order_relaxed);
      if (unit >= blocks * heads) break;
      // The last queries come first: under a causal mask they take longest.
      run_unit(unit % heads, (blocks - 1 - unit / heads) * queries);
    }
    call_.amax_o.raise(amax_o_.bits());
  }

 private:
  /// Without it, as for LSEs' remainders alone, no V is read.
  bool makes_output() const { return !call_.terms.any() || call_.terms.arrays.deltas != nullptr; }

  Operands operands() const { return call_.tensors.operands; }
  /// The LSE rows of the unit's batch and head; max_logit has the same layout.
  problem::HeadRows lse_rows() const { return shape_.lse.rows(batch_, head_, operands()); }

  bool makes_max_logit() const { return !call_.terms.any() && call_.compiled.problem.max_logit; }
  bool drops() const { return makes_output() && call_.compiled.problem.dropout > 0; }

  /// Whether one of these rows of the unit is wanted.
  bool any_wanted(std::size_t row, std::size_t count) const {
    if (makes_output()) return true;
    const problem::HeadRows lse = lse_rows();
    for (std::size_t r = row; r < row + count; ++r) {
      if (leaves_remainder(call_.terms.lse[lse.row(first_ + static_cast<std::int64_t>(r))])) return true;
    }
    return false;
  }

  void run_unit(std::int64_t batch_head, std::int64_t first) {
    batch_ = batch_head / shape_.heads_q;
    head_ = batch_head % shape_.heads_q;
    first_ = first;
    const std::int64_t end = shape_.q.positions(batch_, operands());
    if (first >= end) return;
    rows_ = static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(call_.queries), end - first));
    float* const remainders = call_.terms.arrays.remainders;
    if (remainders != nullptr) std::fill_n(remainders + shape_.query_row(batch_, head_, first_), rows_, 0.0f);
    if (!any_wanted(0, rows_)) return;
    const RowSource q = AttentionShape::rows(call_.tensors.q, shape_.q, batch_, head_, operands());
    pack_rows(q, first_, rows_, call_.parameters.scale, q_, shape_.padded_qk);
    if (makes_output()) std::fill_n(output_, rows_ * shape_.padded_v, 0.0f);
    std::fill_n(largest_, rows_, -kInfinity);
    std::fill_n(sum_, rows_, 0.0f);
    if (makes_max_logit()) std::fill_n(max_logit_, rows_, -kInfinity);
    program_.begin_head(batch_, head_);
    program_.begin_rows(first_, rows_);

    mask_.begin_head(batch_, head_);
    const IndexSpan queries{first_, first_ + static_cast<std::int64_t>(rows_)};
    const std::int64_t end_key = shape_.k.positions(batch_, operands());
    for (std::int64_t key = 0; key < end_key; key += static_cast<std::int64_t>(call_.keys)) {
      const IndexSpan tile{key, std::min(key + static_cast<std::int64_t>(call_.keys), end_key)};
      if (mask_.any(queries, tile)) run_tile(tile);
    }
    if (makes_max_logit()) store_max_logit();
    add_sink();
    if (!call_.terms.any()) return store();
    if (remainders != nullptr) store_remainders();
    if (call_.terms.arrays.deltas != nullptr) store_deltas();
  }

  void run_tile(IndexSpan tile) {
    const auto count = static_cast<std::size_t>(tile.last - tile.first);
    first_key_ = tile.first;
    const std::int64_t head_kv = head_ / shape_.group;
    k_.pack(AttentionShape::rows(call_.tensors.k, shape_.k, batch_, head_kv, operands()), tile.first, count);
    if (makes_output()) {
      const RowSource v = AttentionShape::rows(call_.tensors.v, shape_.v, batch_, head_kv, operands());
      v_finite_ = pack_rows(v, tile.first, count, 1, v_, shape_.padded_v);
    }
    program_.begin_columns(tile.first, count);
    for (std::size_t row = 0; row < rows_; row += kRowBlock) {
      run_rows(row, std::min(kRowBlock, rows_ - row), tile);
    }
  }

  /// A few rows against the keys of the tile that they need. Scores, program, softmax and product with V run while all
  /// is in the first-level cache.
  void run_rows(std::size_t row, std::size_t count, IndexSpan tile) {
    if (!any_wanted(row, count)) return;
    const std::int64_t query = first_ + static_cast<std::int64_t>(row);
    for (const auto& [keys, masked] : mask_.needed({query, query + static_cast<std::int64_t>(count)}, tile)) {
      const auto column = static_cast<std::size_t>(keys.first - tile.first);
      const auto columns = static_cast<std::size_t>(keys.last - keys.first);
      k_.scores(count, {q_ + row * shape_.padded_qk, shape_.padded_qk}, column, columns, {scores_, scores_stride_});
      float factors[kRowBlock];
      for (std::size_t r = 0; r < count; ++r)
        factors[r] =
            softmax_step(row + r, scores_ + r * scores_stride_, column, columns, masked && call_.program.keep_root);
      if (makes_output()) add_p_v(row, count, column, columns, factors);
    }
  }

  /// Turns one row of scores into exp(modified score - largest); returns the factor of the row's earlier output.
  float softmax_step(std::size_t row, float* scores, std::size_t column, std::size_t columns, bool masked) {
    const VectorProgram& program = call_.program;
    const bool unchanged = program.is_identity() && !masked;
    if (!unchanged) program_.evaluate_row(row, column, columns, scores, masked);
    const LaneSource keep = masked ? program_.at(*program.keep_root) : LaneSource{};
    const LaneSource value = unchanged ? LaneSource{scores, false} : program_.at(program.value_root);
    const float tile_largest = mask_scores(value, masked ? &keep : nullptr, columns, scores);
    if (makes_max_logit()) {
      // The largest of the tile leaves NaN out.
      const bool any_nan = std::any_of(scores, scores + columns, [](float x) { return std::isnan(x); });
      max_logit_[row] = any_nan || std::isnan(max_logit_[row]) ? std::numeric_limits<float>::quiet_NaN()
                                                               : std::max(max_logit_[row], tile_largest);
    }
    const float before = largest_[row];
    const float largest = std::max(before, tile_largest);
    // With nothing kept so far any reference gives exp(-inf - reference) = 0.
    const float reference = largest == -kInfinity ? 0.0f : largest;
    const float factor = before == reference ? 1.0f : before == -kInfinity ? 0.0f : std::exp(before - reference);
    largest_[row] = largest;
    sum_[row] = sum_[row] * factor + exponentiate(scores, columns, reference);
    // The sum includes dropped weights, the output does not.
    if (drops()) drop(row, column, columns, scores);
    return factor;
  }

  void drop(std::size_t row, std::size_t column, std::size_t columns, float* weights) const {
    dropout_.drop(batch_, head_, first_ + static_cast<std::int64_t>(row),
                  first_key_ + static_cast<std::int64_t>(column), columns, weights);
  }

  void add_p_v(std::size_t row, std::size_t count, std::size_t column, std::size_t columns, const float* factors) {
    const std::size_t stride = shape_.padded_v;
    MatrixProduct product(count, stride, columns, {scores_, scores_stride_}, {v_ + column * stride, stride},
                          {output_ + row * stride, stride});
    product.factor = factors;
    if (v_finite_) {
      matrix_product(product);
    } else {
      matrix_product_of_weighted(product, scores_);
    }
  }

  /// The sink's term in the sums of the unit's rows. Outputs are relative to the largest score, as the sums are.
  void add_sink() {
    const auto sink = sink_of(call_.compiled.problem, call_.operands, head_);
    if (!sink) return;
    if (takes_all(*sink)) return leave_to_sink(*sink);
    for (std::size_t r = 0; r < rows_; ++r) {
      const float before = largest_[r], largest = std::max(before, *sink);
      // NaN stays: in a sum it was there already, and the largest of a row leaves NaN out.
      if (!(largest == before)) {
        const float factor = before == -kInfinity ? 0.0f : std::exp(before - *sink);
        sum_[r] *= factor;
        if (makes_output()) scale_row(output_ + r * shape_.padded_v, factor);
        largest_[r] = *sink;
      }
      sum_[r] += std::exp(*sink - largest_[r]);
    }
  }

  void leave_to_sink(float sink) {
    if (makes_output()) std::fill_n(output_, rows_ * shape_.padded_v, 0.0f);
    std::fill_n(largest_, rows_, sink);
    std::fill_n(sum_, rows_, 1.0f);
  }

  void scale_row(float* row, float factor) const {
    for (std::size_t d = 0; d < shape_.padded_v; ++d) row[d] *= factor;
  }

  void store_max_logit() const {
    const problem::HeadRows rows = lse_rows();
    for (std::size_t r = 0; r < rows_; ++r)
      call_.tensors.max_logit[rows.row(first_ + static_cast<std::int64_t>(r))] = max_logit_[r];
  }

  void store() {
    const auto share = static_cast<float>(dropout_.factor());
    const RowTarget o = AttentionShape::rows(call_.tensors.o, shape_.o, batch_, head_, operands());
    const problem::HeadRows lse = lse_rows();
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::int64_t query = first_ + static_cast<std::int64_t>(r);
      // A kept key's weight is at least that of the largest score, 1.
      const bool any_kept = sum_[r] != 0;
      const float* output = output_ + r * shape_.padded_v;
      const float factor = any_kept ? share / sum_[r] : 0.0f;
      store_row(output, factor, o, query);
      if (call_.compiled.problem.amax_o) amax_o_.add(output, factor, shape_.dim_v);
      if (call_.tensors.lse == nullptr) continue;
      call_.tensors.lse[lse.row(query)] = any_kept ? largest_[r] + std::log(sum_[r]) : -kInfinity;
    }
  }

  void store_remainders() const {
    float* remainders = call_.terms.arrays.remainders + shape_.query_row(batch_, head_, first_);
    const problem::HeadRows lse = lse_rows();
    for (std::size_t r = 0; r < rows_; ++r) {
      if (sum_[r] == 0) continue;
      const float rounded = call_.terms.lse[lse.row(first_ + static_cast<std::int64_t>(r))];
      remainders[r] = lse_remainder(rounded, largest_[r], sum_[r]);
    }
  }

  void store_deltas() const {
    float* deltas = call_.terms.arrays.deltas + shape_.query_row(batch_, head_, first_);
    const auto share = static_cast<float>(dropout_.factor());
    const RowSource d_o = AttentionShape::rows(call_.terms.d_o, shape_.d_o, batch_, head_, operands());
    for (std::size_t r = 0; r < rows_; ++r) {
      pack_rows(d_o, first_ + static_cast<std::int64_t>(r), 1, 1, d_o_, shape_.padded_v);
      const float sum = dot(output_ + r * shape_.padded_v, d_o_, shape_.dim_v);
      deltas[r] = sum_[r] != 0 ? share / sum_[r] * sum : 0.0f;
    }
  }

  ForwardCall& call_;
  const AttentionShape& shape_;
  MaskTiles mask_;
  TileProgram program_;
  float* q_;
  KeyTile k_;
  float* v_;
  std::size_t scores_stride_;
  float* scores_;
  float* output_;
  float* largest_;
  float* sum_;
  float* max_logit_;  ///< null where it is not wanted
  float* d_o_;        ///< a row of it
  const problem::CallDropout dropout_;

  std::int64_t batch_ = 0, head_ = 0, first_ = 0;
  std::int64_t first_key_ = 0;  ///< of the tile
  std::size_t rows_ = 0;
  bool v_finite_ = true;
  OwnLargestMagnitude amax_o_;
};

}  // namespace

std::size_t forward_worker_bytes(ForwardCall& call) {
  Scratch scratch;
  const Worker worker(call, scratch);
  return scratch.used();
}

void run_forward_worker(ForwardCall& call, Scratch& scratch) { Worker(call, scratch).run(); }

}  // namespace scoremod::backend::cpu
