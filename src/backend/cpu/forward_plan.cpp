#include "backend/cpu/forward_plan.hpp"

#include <atomic>
#include <cmath>
#include <limits>

#include "backend/cpu/key_tile.hpp"
#include "backend/cpu/mask_tiles.hpp"
#include "backend/cpu/operand_views.hpp"
#include "backend/cpu/row_kernels.hpp"
#include "backend/cpu/tile_program.hpp"
#include "backend/cpu/tile_sizes.hpp"
#include "backend/cpu/workers.hpp"

namespace scoremod::backend::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What all threads of a call share; read only but for the counter.
struct Call {
  const compiler::CompiledProblem& compiled;
  const masks::TileMaskAnalyzer& analyzer;
  const AttentionShape& shape;
  const VectorProgram& program;
  const ForwardTensors& tensors;
  const CallParameters& parameters;
  std::span<const OperandView> operands;
  std::size_t queries;  ///< of a unit
  std::size_t keys;     ///< of a tile
  std::atomic<std::int64_t> next_unit{0};
};

/// One thread's buffers. A unit of work is a block of queries of one (batch, head); it runs over the tiles of keys with
/// an online softmax: each row keeps its largest score so far, the sum of exp(score - largest), and the output to be
/// divided by it.
class Worker {
 public:
  Worker(Call& call, Scratch& scratch)
      : call_(call),
        shape_(call.shape),
        mask_(call.compiled, call.analyzer, call.operands, call.parameters.offsets),
        program_(call.program, call.operands, call.parameters.offsets, call.queries, call.keys, scratch),
        q_(scratch.take<float>(call.queries * shape_.padded_qk)),
        k_(shape_, call.keys, scratch),
        v_(scratch.take<float>(call.keys * shape_.padded_v)),
        scores_stride_(round_up(call.keys, kPanelColumns) + kLanePadding),
        scores_(scratch.take<float>(kRowBlock * scores_stride_)),
        output_(scratch.take<float>(call.queries * shape_.padded_v)),
        largest_(scratch.take<float>(call.queries)),
        sum_(scratch.take<float>(call.queries)) {}

  void run() {
    const auto queries = static_cast<std::int64_t>(call_.queries);
    const std::int64_t blocks = (shape_.seq_q + queries - 1) / queries;
    const std::int64_t heads = shape_.batch * shape_.heads_q;
    for (;;) {
      const std::int64_t unit = call_.next_unit.fetch_add(1, std::memory_order_relaxed);
      if (unit >= blocks * heads) return;
      // The last queries come first: under a causal mask they take longest.
      run_unit(unit % heads, (blocks - 1 - unit / heads) * queries);
    }
  }

 private:
  void run_unit(std::int64_t batch_head, std::int64_t first) {
    batch_ = batch_head / shape_.heads_q;
    head_ = batch_head % shape_.heads_q;
    first_ = first;
    rows_ = static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(call_.queries), shape_.seq_q - first));
    const RowSource q = shape_.rows(call_.tensors.q, shape_.q, batch_, head_, shape_.dim_qk);
    pack_rows(q, first_, rows_, call_.parameters.scale, q_, shape_.padded_qk);
    std::fill_n(output_, rows_ * shape_.padded_v, 0.0f);
    std::fill_n(largest_, rows_, -kInfinity);
    std::fill_n(sum_, rows_, 0.0f);
    program_.begin_head(batch_, head_);
    program_.begin_rows(first_, rows_);

    mask_.begin_head(batch_, head_);
    const IndexSpan queries{first_, first_ + static_cast<std::int64_t>(rows_)};
    for (std::int64_t key = 0; key < shape_.seq_kv; key += static_cast<std::int64_t>(call_.keys)) {
      const IndexSpan tile{key, std::min(key + static_cast<std::int64_t>(call_.keys), shape_.seq_kv)};
      if (!mask_.needed(queries, tile).keys.empty()) run_tile(tile);
    }
    store();
  }

  void run_tile(IndexSpan tile) {
    const auto count = static_cast<std::size_t>(tile.last - tile.first);
    const std::int64_t head_kv = head_ / shape_.group;
    k_.pack(shape_.rows(call_.tensors.k, shape_.k, batch_, head_kv, shape_.dim_qk), tile.first, count);
    const RowSource v = shape_.rows(call_.tensors.v, shape_.v, batch_, head_kv, shape_.dim_v);
    v_finite_ = pack_rows(v, tile.first, count, 1, v_, shape_.padded_v);
    program_.begin_columns(tile.first, count);
    for (std::size_t row = 0; row < rows_; row += kRowBlock) {
      run_rows(row, std::min(kRowBlock, rows_ - row), tile);
    }
  }

  /// A few rows against the keys of the tile that they need: scores, program, softmax and product with V while all is
  /// in the first-level cache.
  void run_rows(std::size_t row, std::size_t count, IndexSpan tile) {
    const std::int64_t query = first_ + static_cast<std::int64_t>(row);
    const auto [keys, masked] = mask_.needed({query, query + static_cast<std::int64_t>(count)}, tile);
    if (keys.empty()) return;
    const auto column = static_cast<std::size_t>(keys.first - tile.first);
    const auto columns = static_cast<std::size_t>(keys.last - keys.first);
    k_.scores(count, {q_ + row * shape_.padded_qk, shape_.padded_qk}, column, columns, {scores_, scores_stride_});
    float factors[kRowBlock];
    for (std::size_t r = 0; r < count; ++r)
      factors[r] = soften(row + r, scores_ + r * scores_stride_, column, columns, masked && call_.program.keep_root);
    add_p_v(row, count, column, columns, factors);
  }

  /// Turns one row of scores into exp(modified score - largest); returns what the row's earlier output must be
  /// multiplied by.
  float soften(std::size_t row, float* scores, std::size_t column, std::size_t columns, bool masked) {
    const VectorProgram& program = call_.program;
    const bool unchanged = program.is_identity() && !masked;
    if (!unchanged) program_.evaluate_row(row, column, columns, scores, masked);
    const LaneSource keep = masked ? program_.at(*program.keep_root) : LaneSource{};
    const LaneSource value = unchanged ? LaneSource{scores, false} : program_.at(program.value_root);
    const float tile_largest = mask_scores(value, masked ? &keep : nullptr, columns, scores);
    const float before = largest_[row];
    const float largest = std::max(before, tile_largest);
    // With nothing kept so far any reference gives exp(-inf - reference) = 0.
    const float reference = largest == -kInfinity ? 0.0f : largest;
    const float factor = before == reference ? 1.0f : before == -kInfinity ? 0.0f : std::exp(before - reference);
    largest_[row] = largest;
    sum_[row] = sum_[row] * factor + exponentiate(scores, columns, reference);
    return factor;
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

  void store() {
    const RowTarget o = shape_.rows(call_.tensors.o, shape_.o, batch_, head_, shape_.dim_v);
    for (std::size_t r = 0; r < rows_; ++r) {
      const std::int64_t query = first_ + static_cast<std::int64_t>(r);
      // A kept key's weight is at least that of the largest score, 1.
      const bool any_kept = sum_[r] != 0;
      store_row(output_ + r * shape_.padded_v, any_kept ? 1 / sum_[r] : 0.0f, o, query);
      if (call_.tensors.lse == nullptr) continue;
      call_.tensors.lse[shape_.query_row(batch_, head_, query)] =
          any_kept ? largest_[r] + std::log(sum_[r]) : -kInfinity;
    }
  }

  Call& call_;
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

  std::int64_t batch_ = 0, head_ = 0, first_ = 0;
  std::size_t rows_ = 0;
  bool v_finite_ = true;
};

class CpuForward final : public ForwardPlan {
 public:
  CpuForward(const compiler::CompiledProblem& compiled, const PlanOptions& options)
      : compiled_(compiled),
        analyzer_(compiled_.program),
        shape_(compiled.problem),
        program_(vectorize(compiled.program)),
        operands_(operand_views(compiled.problem)),
        threads_(useful_threads(shape_, thread_count(options.threads))) {
    // A call refers to these: they must live as long as it does.
    const ForwardTensors no_tensors;
    const CallParameters no_parameters;
    Call call = make_call(no_tensors, no_parameters, operands_);
    Scratch scratch;
    const Worker worker(call, scratch);
    worker_bytes_ = scratch.used();
  }

  std::size_t workspace_bytes() const override { return worker_bytes_ * static_cast<std::size_t>(threads_); }

  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    const std::vector<OperandView> operands = with_data(operands_, tensors.operands);
    Call call = make_call(tensors, parameters, operands);
    run_workers(threads_, [&](int worker) {
      Scratch scratch(workspace.subspan(static_cast<std::size_t>(worker) * worker_bytes_, worker_bytes_));
      Worker(call, scratch).run();
    });
  }

 private:
  Call make_call(const ForwardTensors& tensors, const CallParameters& parameters,
                 std::span<const OperandView> operands) const {
    return {compiled_,
            analyzer_,
            shape_,
            program_,
            tensors,
            parameters,
            operands,
            queries_per_unit(shape_, threads_),
            keys_per_tile(shape_)};
  }

  const compiler::CompiledProblem compiled_;
  const masks::TileMaskAnalyzer analyzer_;
  const AttentionShape shape_;
  const VectorProgram program_;
  const std::vector<OperandView> operands_;
  const int threads_;
  std::size_t worker_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ForwardPlan> make_forward_plan(const compiler::CompiledProblem& problem, const PlanOptions& options) {
  return std::make_unique<CpuForward>(problem, options);
}

}  // namespace scoremod::backend::cpu
