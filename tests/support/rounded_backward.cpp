#include "support/rounded_backward.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>
#include <vector>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/interpreter.hpp"
#include "backend/reference/sink_value.hpp"
#include "base/element.hpp"
#include "problem/call_dropout.hpp"
#include "problem/implied_operands.hpp"
#include "problem/strided_tensor.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::test {
namespace {

namespace reference = backend::reference;
using backend::BackwardTensors;
using backend::CallParameters;
using problem::TensorRole;

constexpr std::int64_t kStep = 16, kLanes = 32;
constexpr float kLog2E = std::numbers::log2e_v<float>;

/// Truncates a float64 to the next float towards zero.
float cut_off(double x) {
  const auto rounded = static_cast<float>(x);
  return std::abs(static_cast<double>(rounded)) > std::abs(x) ? std::nextafter(rounded, 0.0F) : rounded;
}

/// A sum of products as matrix units make it: steps that are exact within, added up in float32.
float product(const float* x, const float* y, std::int64_t size, bool cuts_off) {
  float sum = 0;
  for (std::int64_t begin = 0; begin < size; begin += kStep) {
    double step = 0;
    for (std::int64_t d = begin; d < std::min(begin + kStep, size); ++d)
      step += static_cast<double>(x[d]) * static_cast<double>(y[d]);
    const double next = static_cast<double>(sum) + step;
    sum = cuts_off ? cut_off(next) : static_cast<float>(next);
  }
  return sum;
}

/// A sum of products as a warp makes it: each lane its own, then half of the lanes those of the other half.
float product_by_lanes(const float* x, const float* y, std::int64_t size) {
  std::array<float, kLanes> lanes{};
  for (std::int64_t d = 0; d < size; ++d) {
    float& lane = lanes[static_cast<std::size_t>(d % kLanes)];
    lane = std::fma(x[d], y[d], lane);
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

class Evaluation {
 public:
  Evaluation(const compiler::CompiledProblem& compiled, const KernelRounding& rounding, KernelFault fault,
             const BackwardTensors& t, const CallParameters& parameters)
      : p_(compiled.problem),
        rounding_(rounding),
        fault_(fault),
        dtype_(problem::product_dtype(p_)),
        scale_(parameters.scale),
        q_(reference::load_dense<float>(p_, TensorRole::kQ, t.q, t.operands)),
        k_(reference::load_dense<float>(p_, TensorRole::kK, t.k, t.operands)),
        v_(reference::load_dense<float>(p_, TensorRole::kV, t.v, t.operands)),
        o_(reference::load_dense<float>(p_, TensorRole::kO, t.o, t.operands)),
        d_o_(reference::load_dense<float>(p_, TensorRole::kDO, t.d_o, t.operands)),
        lse_(reference::load_dense<float>(p_, TensorRole::kLse, t.lse, t.operands)),
        operands_(reference::view_operands(p_, t.operands)),
        derivative_program_(compiled.backward->program),
        program_(p_.program, operands_, parameters.offsets),
        derivative_(derivative_program_, operands_, parameters.offsets),
        dropout_(p_, parameters.dropout_seed, parameters.dropout_offset, parameters.offsets, t.operands),
        keys_(static_cast<std::size_t>(p_.seq_kv)) {
    dq.resize(q_.size());
    dk.resize(k_.size());
    dv.resize(v_.size());
    for (const reference::OperandView& operand : operands_)
      d_operands.emplace_back(is_floating(operand.dtype) ? static_cast<std::size_t>(operand.size()) : 0);
  }

  /// From the last row to the first, as no plain evaluation goes.
  void run() {
    for (std::int64_t b = p_.batch; b-- > 0;)
      for (std::int64_t h = p_.heads_q; h-- > 0;)
        for (std::int64_t i = p_.seq_q; i-- > 0;) add_row(b, h, i);
  }

  std::vector<float> dq, dk, dv;
  std::vector<std::vector<float>> d_operands;

 private:
  struct Key {
    bool kept = false;
    float score = 0, value = 0, weight = 0, share = 1, d_weight = 0;
  };

  void add_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t row = (b * p_.heads_q + h) * p_.seq_q + i;
    const float* d_o = d_o_.data() + row * p_.dim_v;
    weigh(b, h, i, row);
    const float delta = delta_of(row);
    if (const auto sink = problem::sink_operand(p_)) add_sink(*sink, h, row, delta);
    for (std::int64_t j = 0; j < p_.seq_kv; ++j) {
      const Key& key = keys_[static_cast<std::size_t>(j)];
      if (!key.kept) continue;
      const std::int64_t key_row = this->key_row(b, h, j);
      add_scaled(dv.data() + key_row * p_.dim_v, round_to(dtype_, key.weight * key.share), d_o, p_.dim_v);
      derivative_.evaluate({b, h, i, j}, key.score, key.weight * (key.d_weight - delta));
      const float adjoint = add_adjoints();
      const float d_score =
          rounding_.rounded_unscaled ? scale_ * round_to(dtype_, adjoint) : round_to(dtype_, scale_ * adjoint);
      add_scaled(dq.data() + row * p_.dim_qk, d_score, k_.data() + key_row * p_.dim_qk, p_.dim_qk);
      add_scaled(dk.data() + key_row * p_.dim_qk, d_score, q_.data() + row * p_.dim_qk, p_.dim_qk);
    }
  }

  /// Fills keys_ with weights from the row's LSE, and with their gradients.
  void weigh(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t row) {
    const float lse = lse_[static_cast<std::size_t>(row)];
    for (std::int64_t j = 0; j < p_.seq_kv; ++j) {
      Key& key = keys_[static_cast<std::size_t>(j)];
      const std::int64_t key_row = this->key_row(b, h, j);
      key.score =
          scale_ * product(q_.data() + row * p_.dim_qk, k_.data() + key_row * p_.dim_qk, p_.dim_qk, rounding_.cut_off);
      program_.evaluate({b, h, i, j}, key.score);
      key.kept = program_.keeps() && lse != -std::numeric_limits<float>::infinity();
      if (!key.kept) continue;
      key.value = program_.value();
      key.weight = std::exp2((key.value - lse) * kLog2E);
      if (p_.dropout > 0) key.share = dropout_.keeps(b, h, i, j) ? static_cast<float>(dropout_.factor()) : 0.0F;
      key.d_weight = key.share *
                     product(d_o_.data() + row * p_.dim_v, v_.data() + key_row * p_.dim_v, p_.dim_v, rounding_.cut_off);
    }
    if (std::abs(lse) > rounding_.largest_read_lse && p_.sink == Sink::kNone && !p_.given_deltas) weigh_by_maximum();
  }

  /// For an LSE that float32 rounds by more than weights can bear.
  void weigh_by_maximum() {
    float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
    for (const Key& key : keys_)
      if (key.kept) maximum = std::max(maximum, key.value);
    for (Key& key : keys_)
      if (key.kept) sum += key.weight = std::exp2((key.value - maximum) * kLog2E);
    for (Key& key : keys_) key.weight /= sum;
  }

  float delta_of(std::int64_t row) const {
    const auto kept = std::ranges::count_if(keys_, &Key::kept);
    if (kept == 1 && fault_ == KernelFault::kNoDeltaOfOneKey) return 0;
    const float part = kept == 1 && fault_ == KernelFault::kHalfADeltaOfOneKey ? 0.5F : 1.0F;
    if (!rounding_.delta_of_weights || p_.sink != Sink::kNone || p_.given_deltas)
      return part * product_by_lanes(d_o_.data() + row * p_.dim_v, o_.data() + row * p_.dim_v, p_.dim_v);
    float sum = 0, weights = 0;
    for (const Key& key : keys_) {
      if (!key.kept) continue;
      sum = std::fma(key.weight, key.d_weight, sum);
      weights += key.weight;
    }
    return weights > 0 ? part * sum / weights : 0;
  }

  void add_sink(std::uint32_t sink, std::int64_t h, std::int64_t row, float delta) {
    const auto value = reference::sink_value<float>(p_, operands_, h);
    if (!value) return;
    const float weight = std::exp2((*value - lse_[static_cast<std::size_t>(row)]) * kLog2E);
    d_operands[sink][static_cast<std::size_t>(h)] -= weight * delta;
  }

  /// Adds the operands' adjoints of the evaluated key, and returns the score's.
  float add_adjoints() {
    float adjoint = 0;
    for (const Root& root : derivative_program_.roots()) {
      if (root.kind == RootKind::kScoreAdjoint) adjoint = derivative_.at(root.node);
      if (root.kind != RootKind::kOperandAdjoint) continue;
      const auto entry = static_cast<std::size_t>(derivative_.target_entry(root));
      d_operands[root.operand][entry] += derivative_.at(root.node);
    }
    return adjoint;
  }

  static void add_scaled(float* sum, float factor, const float* x, std::int64_t size) {
    for (std::int64_t d = 0; d < size; ++d) sum[d] = std::fma(factor, x[d], sum[d]);
  }

  std::int64_t key_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return (b * p_.heads_kv + h / (p_.heads_q / p_.heads_kv)) * p_.seq_kv + j;
  }

  const AttentionProblem& p_;
  const KernelRounding rounding_;
  const KernelFault fault_;
  const DType dtype_;
  const float scale_;
  const std::vector<float> q_, k_, v_, o_, d_o_, lse_;
  const std::vector<reference::OperandView> operands_;
  const Program derivative_program_;
  reference::Interpreter<float> program_, derivative_;
  const problem::CallDropout dropout_;
  std::vector<Key> keys_;
};

}  // namespace

void RoundedBackward::execute(const BackwardTensors& t, const CallParameters& parameters, std::span<std::byte>) const {
  const AttentionProblem& p = compiled_.problem;
  Evaluation evaluation(compiled_, rounding_, fault_, t, parameters);
  evaluation.run();
  if (t.dq != nullptr) reference::store_dense(p, TensorRole::kDQ, evaluation.dq, t.dq, t.operands);
  if (t.dk != nullptr) reference::store_dense(p, TensorRole::kDK, evaluation.dk, t.dk, t.operands);
  if (t.dv != nullptr) reference::store_dense(p, TensorRole::kDV, evaluation.dv, t.dv, t.operands);
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    if (t.d_operands[i] == nullptr) continue;
    problem::tensor_of("", p.operands[i]).for_each_offset([&](std::int64_t number, std::int64_t offset) {
      store_element(t.d_operands[i], p.operands[i].dtype, offset,
                    static_cast<double>(evaluation.d_operands[i][static_cast<std::size_t>(number)]));
    });
  }
}

}  // namespace scoremod::test
