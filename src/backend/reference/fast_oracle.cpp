#include "backend/reference/fast_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <span>

#include "backend/reference/oracle_task.hpp"
#include "backend/reference/padded_matrix.hpp"
#include "backend/reference/sink_value.hpp"
#include "backend/reference/strip_evaluator.hpp"
#include "base/cpu_threads.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::reference {
namespace {

using problem::TensorRole;

/// Queries of a block: enough that sums over queries are worth loading and storing.
constexpr std::size_t kBlockRows = 32;
constexpr double kZero = 0;

/// One thread's memory. A unit of work is one (batch, KV head), whose dk and dv it owns.
class Worker {
 public:
  Worker(OracleTask& task, const Progress& progress)
      : task_(task),
        problem_(task.problem),
        progress_(progress),
        keys_(static_cast<std::size_t>(problem_.seq_kv)),
        dim_qk_(static_cast<std::size_t>(problem_.dim_qk)),
        dim_v_(static_cast<std::size_t>(problem_.dim_v)),
        // The user's own program: the passes' result is not trusted here.
        program_(problem_.program, task.operands, task.parameters.offsets, problem_.seq_kv),
        k_(keys_, dim_qk_),
        k_transposed_(dim_qk_, keys_),
        v_(keys_, dim_v_),
        q_(kBlockRows, dim_qk_),
        scores_(kBlockRows, keys_),
        weights_(kBlockRows, keys_),
        shares_(kBlockRows, keys_),
        o_(kBlockRows, dim_v_),
        kept_(kBlockRows * scores_.stride),
        left_(kept_.size()),
        lse_(kBlockRows),
        sink_weights_(kBlockRows),
        max_logit_(kBlockRows) {
    if (!task.derivative) return;
    derivative_.emplace(*task.derivative, task.operands, task.parameters.offsets, problem_.seq_kv);
    for (const Root& root : task.derivative->roots()) {
      if (root.kind == RootKind::kScoreAdjoint) score_adjoint_ = root.node;
    }
    v_transposed_ = Matrix(dim_v_, keys_);
    d_o_ = Matrix(kBlockRows, dim_v_);
    d_weights_ = Matrix(kBlockRows, keys_);
    dq_ = Matrix(kBlockRows, dim_qk_);
    dk_ = Matrix(keys_, dim_qk_);
    dv_ = Matrix(keys_, dim_v_);
  }

  void run() {
    const std::int64_t units = problem_.batch * problem_.heads_kv;
    for (;;) {
      const std::int64_t unit = task_.next_unit.fetch_add(1);
      if (unit >= units) return;
      run_unit(unit / problem_.heads_kv, unit % problem_.heads_kv);
    }
  }

 private:
  void run_unit(std::int64_t b, std::int64_t head_kv) {
    const std::size_t first_key = static_cast<std::size_t>(b * problem_.heads_kv + head_kv) * keys_;
    k_.load(task_.k.data() + first_key * dim_qk_, keys_);
    v_.load(task_.v.data() + first_key * dim_v_, keys_);
    k_transposed_.load_transposed(k_, keys_);
    if (derivative_) {
      v_transposed_.load_transposed(v_, keys_);
      dk_.clear();
      dv_.clear();
    }
    const std::int64_t group = problem_.heads_q / problem_.heads_kv;
    for (std::int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
      head_ = h;
      sink_ = sink_value<double>(problem_, task_.operands, h);
      program_.begin_head(b, h);
      if (derivative_) derivative_->begin_head(b, h);
      for (std::int64_t i = 0; i < problem_.seq_q; i += kBlockRows) {
        run_block(b, h, i, static_cast<std::size_t>(std::min<std::int64_t>(kBlockRows, problem_.seq_q - i)));
      }
    }
    if (!derivative_) return;
    store(dk_, keys_, task_.backward.dk.data() + first_key * dim_qk_);
    store(dv_, keys_, task_.backward.dv.data() + first_key * dim_v_);
  }

  void run_block(std::int64_t b, std::int64_t h, std::int64_t i, std::size_t rows) {
    const std::size_t first = task_.query_row(b, h, i);
    q_.load(task_.q.data() + first * dim_qk_, rows);
    multiply(q_, rows, k_transposed_, dim_qk_, scores_);
    for (std::size_t r = 0; r < rows; ++r) {
      weigh(i + static_cast<std::int64_t>(r), r);
      drop(b, h, i + static_cast<std::int64_t>(r), r);
    }
    o_.clear();
    for (std::size_t r = 0; r < rows; ++r) {
      if (std::isnan(lse_[r])) std::fill_n(o_.row(r), dim_v_, lse_[r]);
    }
    add_kept({rows, v_.stride, keys_, shares_.data.data(), shares_.stride, 1, v_.data.data(), v_.stride, o_.data.data(),
              o_.stride},
             v_.finite, left_);
    if (derivative_) {
      differentiate(first, i, rows);
    } else {
      store_output(rows, task_.forward.o.data() + first * dim_v_);
      std::copy_n(lse_.data(), rows, task_.forward.lse.data() + first);
      std::copy_n(max_logit_.data(), rows, task_.forward.max_logit.data() + first);
    }
    report(static_cast<std::int64_t>(rows));
  }

  /// Computes the scores, the weights, the kept keys and the LSE from one row of products of q and k.
  void weigh(std::int64_t query, std::size_t r) {
    double* scores = scores_.row(r);
    double* weights = weights_.row(r);
    std::uint8_t* kept = kept_.data() + r * scores_.stride;
    for (std::size_t j = 0; j < keys_; ++j) scores[j] *= task_.parameters.scale;
    program_.begin_query(query);
    for_each_strip([&](std::size_t first, std::size_t count) {
      program_.evaluate(static_cast<std::int64_t>(first), count, scores + first);
      program_.write_kept(kept + first);
      const Lanes value = program_.at(problem_.program.value());
      for (std::size_t lane = 0; lane < count; ++lane) weights[first + lane] = value.f[lane * value.step];
    });
    double maximum = -std::numeric_limits<double>::infinity();
    bool any = sink_.has_value();
    for (std::size_t j = 0; j < keys_; ++j) {
      if (kept[j] == 0) continue;
      any = true;
      if (std::isnan(weights[j]) || weights[j] > maximum) maximum = weights[j];
    }
    max_logit_[r] = maximum;
    if (takes_all(sink_)) return take_all(r);
    if (sink_ && !(*sink_ <= maximum)) maximum = std::isnan(maximum) ? maximum : *sink_;
    exponentiate(weights, keys_, maximum);
    double sum = sink_ ? std::exp(*sink_ - maximum) : 0;
    for (std::size_t j = 0; j < keys_; ++j) {
      weights[j] = kept[j] != 0 ? weights[j] : 0;
      sum += weights[j];
    }
    sink_weights_[r] = sink_ ? std::exp(*sink_ - maximum) / sum : 0;
    lse_[r] = any ? maximum + std::log(sum) : -std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < keys_; ++j) weights[j] = kept[j] != 0 ? weights[j] / sum : 0;
  }

  /// A row whose sink leaves its keys nothing.
  void take_all(std::size_t r) {
    std::fill_n(weights_.row(r), keys_, 0);
    std::fill_n(kept_.data() + r * scores_.stride, keys_, std::uint8_t{0});
    lse_[r] = *sink_;
    sink_weights_[r] = 1;
  }

  /// The part of each weight that goes into the output, and which keys have one.
  void drop(std::int64_t b, std::int64_t h, std::int64_t query, std::size_t r) {
    const double* weights = weights_.row(r);
    double* shares = shares_.row(r);
    const std::uint8_t* kept = kept_.data() + r * scores_.stride;
    std::uint8_t* left = left_.data() + r * scores_.stride;
    for (std::size_t j = 0; j < keys_; ++j) {
      left[j] = kept[j];
      if (problem_.dropout > 0 && !task_.dropout.keeps(b, h, query, static_cast<std::int64_t>(j))) left[j] = 0;
      shares[j] = left[j] != 0 ? weights[j] * task_.dropout.factor() : 0;
    }
  }

  void differentiate(std::size_t first, std::int64_t query, std::size_t rows) {
    d_o_.load(task_.d_o.data() + first * dim_v_, rows);
    multiply(d_o_, rows, v_transposed_, dim_v_, d_weights_);
    for (std::size_t r = 0; r < rows; ++r) differentiate_row(query + static_cast<std::int64_t>(r), r);
    dq_.clear();
    add_kept({rows, k_.stride, keys_, d_weights_.data.data(), d_weights_.stride, 1, k_.data.data(), k_.stride,
              dq_.data.data(), dq_.stride},
             k_.finite, kept_);
    store(dq_, rows, task_.backward.dq.data() + first * dim_qk_);
    add_kept({keys_, q_.stride, rows, d_weights_.data.data(), 1, d_weights_.stride, q_.data.data(), q_.stride,
              dk_.data.data(), dk_.stride},
             q_.finite, kept_);
    add_kept({keys_, d_o_.stride, rows, shares_.data.data(), 1, shares_.stride, d_o_.data.data(), d_o_.stride,
              dv_.data.data(), dv_.stride},
             d_o_.finite, left_);
  }

  /// Turns one row of dO V^T into the gradient of the products of q and k.
  void differentiate_row(std::int64_t query, std::size_t r) {
    const std::uint8_t* kept = kept_.data() + r * scores_.stride;
    const double* weights = weights_.row(r);
    double* upstream = d_weights_.row(r);
    double delta = 0;
    for (std::size_t d = 0; d < dim_v_; ++d) delta += d_o_.row(r)[d] * o_.row(r)[d];
    if (const auto sink = problem::sink_operand(problem_)) {
      const std::lock_guard lock(task_.mutex);
      task_.backward.d_operands[*sink][static_cast<std::size_t>(head_)] -= sink_weights_[r] * delta;
    }
    const std::uint8_t* left = left_.data() + r * scores_.stride;
    for (std::size_t j = 0; j < keys_; ++j) {
      const double d_weight = left[j] != 0 ? upstream[j] * task_.dropout.factor() : 0;
      upstream[j] = kept[j] != 0 ? weights[j] * (d_weight - delta) : 0;
    }
    derivative_->begin_query(query);
    for_each_strip([&](std::size_t first, std::size_t count) {
      derivative_->evaluate(static_cast<std::int64_t>(first), count, scores_.row(r) + first, upstream + first);
      add_contributions(kept + first);
      // In place of the upstream adjoints, which have been read. Without such a root the score has no gradient.
      const Lanes adjoint =
          score_adjoint_ == kNoNode ? Lanes{&kZero, nullptr, nullptr, 0} : derivative_->at(score_adjoint_);
      for (std::size_t lane = 0; lane < count; ++lane) {
        const double d_score = task_.parameters.scale * adjoint.f[lane * adjoint.step];
        upstream[first + lane] = kept[first + lane] != 0 ? d_score : 0;
      }
    });
  }

  void add_contributions(const std::uint8_t* kept) {
    std::unique_lock lock(task_.mutex, std::defer_lock);
    for (const Root& root : task_.derivative->roots()) {
      if (root.kind != RootKind::kOperandAdjoint) continue;
      if (!lock) lock.lock();
      derivative_->add_contributions(root, kept, task_.backward.d_operands[root.operand]);
    }
  }

  template <class Body>
  void for_each_strip(const Body& body) const {
    for (std::size_t first = 0; first < keys_; first += StripEvaluator::kMaxKeys)
      body(first, std::min(StripEvaluator::kMaxKeys, keys_ - first));
  }

  static void store(const Matrix& matrix, std::size_t rows, double* out) {
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(matrix.row(r), matrix.columns, out + r * matrix.columns);
  }

  /// As it is in memory, with its largest magnitude.
  void store_output(std::size_t rows, double* out) {
    store(o_, rows, out);
    double largest = 0;
    for (double& o : std::span(out, rows * dim_v_)) {
      largest = larger_magnitude(largest, o);
      o = saturate(task_.dtype_o, o * task_.scale_o);
    }
    const std::lock_guard lock(task_.mutex);
    double& of_all = task_.forward.amax_o.front();
    of_all = larger_magnitude(of_all, largest);
  }

  void report(std::int64_t rows) {
    const std::int64_t done = task_.rows_done.fetch_add(rows) + rows;
    if (!progress_) return;
    const std::lock_guard lock(task_.mutex);
    progress_(static_cast<double>(done) / static_cast<double>(problem_.batch * problem_.heads_q * problem_.seq_q));
  }

  OracleTask& task_;
  const AttentionProblem& problem_;
  const Progress& progress_;
  const std::size_t keys_, dim_qk_, dim_v_;
  StripEvaluator program_;
  std::optional<StripEvaluator> derivative_;
  NodeId score_adjoint_ = kNoNode;
  Matrix k_, k_transposed_, v_, v_transposed_;
  Matrix q_, scores_, weights_;
  Matrix shares_;  ///< the weights as they go into the output
  Matrix o_, d_o_;
  Matrix d_weights_;  ///< dO V^T, then the upstream adjoints, then the gradient of Q K^T
  Matrix dq_, dk_, dv_;
  std::vector<std::uint8_t> kept_;  ///< as scores_
  std::vector<std::uint8_t> left_;  ///< likewise: kept, and not dropped
  std::vector<double> lse_, sink_weights_, max_logit_;
  std::int64_t head_ = 0;
  std::optional<double> sink_;  ///< of the head
};

void run(OracleTask& task, int threads, const Progress& progress) {
  // A thread costs as much as some ten thousand scores.
  constexpr double kLeastScores = 20000;
  const AttentionProblem& p = task.problem;
  const double scores =
      static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.seq_q) * static_cast<double>(p.seq_kv);
  const double most = cpu_threads(threads);
  const double units = static_cast<double>(p.batch * p.heads_kv);
  const auto count = static_cast<int>(std::max(1.0, std::min({most, units, scores / kLeastScores})));
  std::vector<std::future<void>> others;
  for (int i = 1; i < count; ++i)
    others.push_back(std::async(std::launch::async, [&] { Worker(task, progress).run(); }));
  Worker(task, progress).run();
  for (std::future<void>& other : others) other.get();
}

}  // namespace

ForwardResult<double> fast_forward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                                   const CallParameters& parameters, int threads, const Progress& progress) {
  OracleTask task(compiled, inputs, parameters);
  const std::size_t rows = task.query_row(task.problem.batch, 0, 0);
  task.forward.o.resize(rows * static_cast<std::size_t>(task.problem.dim_v));
  task.forward.lse.resize(rows);
  task.forward.max_logit.resize(rows);
  task.forward.amax_o = {0};
  run(task, threads, progress);
  return std::move(task.forward);
}

BackwardResult<double> fast_backward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                                     const CallParameters& parameters, int threads, const Progress& progress) {
  if (!compiled.backward) fail_bug("the problem was compiled without a derivative");
  OracleTask task(compiled, inputs, parameters);
  task.derivative = compiled.backward->program;
  task.d_o = load_dense<double>(task.problem, TensorRole::kDO, inputs.d_o, inputs.operands);
  task.backward.dq.resize(task.q.size());
  task.backward.dk.resize(task.k.size());
  task.backward.dv.resize(task.v.size());
  for (const OperandView& operand : task.operands)
    task.backward.d_operands.emplace_back(is_floating(operand.dtype) ? static_cast<std::size_t>(operand.size()) : 0);
  run(task, threads, progress);
  task.backward.amax_dq = largest_magnitude(task.backward.dq);
  task.backward.amax_dk = largest_magnitude(task.backward.dk);
  task.backward.amax_dv = largest_magnitude(task.backward.dv);
  return std::move(task.backward);
}

}  // namespace scoremod::backend::reference
