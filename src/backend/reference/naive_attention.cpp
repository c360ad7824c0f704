#include "backend/reference/naive_attention.hpp"

#include <cmath>
#include <utility>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/interpreter.hpp"
#include "backend/reference/softmax_rows.hpp"
#include "base/element.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::reference {
namespace {

using problem::TensorRole;

template <class Real>
class Backward {
 public:
  Backward(const compiler::CompiledProblem& compiled, const InputTensors& inputs, const CallParameters& parameters,
           const Moves& moves)
      : softmax_(compiled, inputs, parameters, moves),
        difference_(moves.difference),
        problem_(softmax_.problem),
        d_o_(multiplied_d_o(inputs)),
        o_(static_cast<std::size_t>(problem_.dim_v)),
        given_(given(problem_, inputs)),
        derivative_program_(derivative_of(compiled)),
        derivative_(derivative_program_, softmax_.operands, parameters.offsets) {
    derivative_.move_functions(moves.function);
    result_.dq.resize(softmax_.q.size());
    result_.dk.resize(softmax_.k.size());
    result_.dv.resize(softmax_.v.size());
    for (const OperandView& operand : softmax_.operands) {
      result_.d_operands.emplace_back(is_floating(operand.dtype) ? static_cast<std::size_t>(operand.size()) : 0);
    }
  }

  void add_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const Row<Real>& row = softmax_.row(b, h, i);
    const std::int64_t query_row = (b * problem_.heads_q + h) * problem_.seq_q + i;
    const Real* d_o = d_o_.data() + query_row * problem_.dim_v;
    const Real* o = o_.data();
    if (given_.o.empty()) {
      softmax_.output(b, h, row, o_.data());
      for (Real& element : o_) element = softmax_.taken(element);
    } else {
      softmax_.normalize_by(h, given_.lse[static_cast<std::size_t>(query_row)]);
      o = given_.o.data() + query_row * problem_.dim_v;
    }
    const Real delta = dot_backwards(d_o, o, problem_.dim_v) - move_of(d_o, o);
    if (const auto sink = problem::sink_operand(problem_))
      result_.d_operands[*sink][static_cast<std::size_t>(h)] -= row.sink_weight * delta;
    for (std::int64_t j = 0; j < problem_.seq_kv; ++j) {
      const auto at = static_cast<std::size_t>(j);
      if (!row.kept[at]) continue;
      const std::int64_t key_row = softmax_.key_row(b, h, j);
      Real d_weight = 0;
      if (row.share[at] != 0) {
        add_scaled(result_.dv.data() + key_row * problem_.dim_v,
                   as_stored(row.weight[at] * row.share[at], problem::product_dtype(problem_)), d_o, problem_.dim_v);
        const Real* v = softmax_.v_row(b, h, j);
        d_weight = row.share[at] * (dot(d_o, v, problem_.dim_v) + move_of(d_o, v));
      }
      derivative_.evaluate({b, h, i, j}, row.score[at], row.weight[at] * (d_weight - delta));
      // Scaled before it is rounded, as cuDNN's graph does it: a small scale may bring an f16 below its normal numbers.
      const Real d_score = as_stored(softmax_.scale * adjoints(), problem::product_dtype(problem_));
      add_scaled(result_.dq.data() + query_row * problem_.dim_qk, d_score, softmax_.k_row(b, h, j), problem_.dim_qk);
      add_scaled(result_.dk.data() + key_row * problem_.dim_qk, d_score, softmax_.q_row(b, h, i), problem_.dim_qk);
    }
  }

  BackwardResult<Real> take_result() {
    const auto store = [](std::vector<Real>& values, DType dtype) {
      for (Real& value : values) value = as_stored(value, dtype);
    };
    for (const auto& [values, unit] : {std::pair{&result_.dq, softmax_.unit_q}, std::pair{&result_.dk, softmax_.unit_k},
                                       std::pair{&result_.dv, softmax_.unit_v}}) {
      for (Real& value : *values) value = as_multiplied(problem_, unit, value);
    }
    result_.amax_dq = largest_magnitude(result_.dq);
    result_.amax_dk = largest_magnitude(result_.dk);
    result_.amax_dv = largest_magnitude(result_.dv);
    for (std::vector<Real>* values : {&result_.dq, &result_.dk, &result_.dv})
      store(*values, problem::dtype_of(problem_, TensorRole::kDQ));
    for (std::size_t i = 0; i < softmax_.operands.size(); ++i) store(result_.d_operands[i], softmax_.operands[i].dtype);
    return std::move(result_);
  }

 private:
  /// The o and LSE of a problem with given deltas, as the call passes them; empty otherwise.
  struct Given {
    std::vector<Real> o;
    std::vector<float> lse;
  };
  static Given given(const AttentionProblem& problem, const InputTensors& inputs) {
    if (!problem.given_deltas || inputs.o == nullptr) return {};
    return {load_dense<Real>(problem, TensorRole::kO, inputs.o, inputs.operands),
            load_dense<float>(problem, TensorRole::kLse, inputs.lse, inputs.operands)};
  }

  std::vector<Real> multiplied_d_o(const InputTensors& inputs) const {
    std::vector<Real> d_o = load_dense<Real>(problem_, TensorRole::kDO, inputs.d_o, inputs.operands);
    for (Real& value : d_o) value = as_multiplied(problem_, softmax_.unit_v, value);
    return d_o;
  }

  static Program derivative_of(const compiler::CompiledProblem& compiled) {
    if (!compiled.backward) fail_bug("the problem was compiled without a derivative");
    return compiled.backward->program;
  }

  /// The move of a sum of products along the head dim of v, by Moves::difference.
  Real move_of(const Real* d_o, const Real* other) const {
    if (difference_ == 0) return 0;
    return static_cast<Real>(difference_ * magnitudes(d_o, other, problem_.dim_v));
  }

  /// Adds the operands' contributions at the evaluated element; returns the score's.
  Real adjoints() {
    Real d_score = 0;
    for (const Root& root : derivative_program_.roots()) {
      if (root.kind == RootKind::kScoreAdjoint) d_score = derivative_.at(root.node);
      if (root.kind != RootKind::kOperandAdjoint) continue;
      const auto entry = static_cast<std::size_t>(derivative_.target_entry(root));
      result_.d_operands[root.operand][entry] += derivative_.at(root.node);
    }
    return d_score;
  }

  SoftmaxRows<Real> softmax_;
  const double difference_;
  const AttentionProblem& problem_;
  const std::vector<Real> d_o_;
  std::vector<Real> o_;
  const Given given_;
  const Program derivative_program_;
  Interpreter<Real> derivative_;
  BackwardResult<Real> result_;
};

}  // namespace

template <class Real>
ForwardResult<Real> forward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                            const CallParameters& parameters, const Progress& progress, const Moves& moves) {
  SoftmaxRows<Real> rows(compiled, inputs, parameters, moves);
  const AttentionProblem& problem = compiled.problem;
  const std::int64_t row_count = problem.batch * problem.heads_q * problem.seq_q;
  ForwardResult<Real> result;
  result.o.resize(static_cast<std::size_t>(row_count * problem.dim_v));
  result.lse.reserve(static_cast<std::size_t>(row_count));
  Real largest = 0;
  for_each_row(problem, progress, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const Row<Real>& row = rows.row(b, h, i);
    Real* o = result.o.data() + result.lse.size() * static_cast<std::size_t>(problem.dim_v);
    rows.output(b, h, row, o);
    for (std::int64_t d = 0; d < problem.dim_v; ++d) {
      largest = larger_magnitude(largest, o[d]);
      o[d] = rows.stored(o[d]);
    }
    result.lse.push_back(row.lse);
    result.max_logit.push_back(row.max_logit);
  });
  result.amax_o = {largest};
  return result;
}

template <class Real>
BackwardResult<Real> backward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                              const CallParameters& parameters, const Progress& progress, const Moves& moves) {
  Backward<Real> backward(compiled, inputs, parameters, moves);
  for_each_row(compiled.problem, progress,
               [&](std::int64_t b, std::int64_t h, std::int64_t i) { backward.add_row(b, h, i); });
  return backward.take_result();
}

template ForwardResult<float> forward(const compiler::CompiledProblem&, const InputTensors&, const CallParameters&,
                                      const Progress&, const Moves&);
template ForwardResult<double> forward(const compiler::CompiledProblem&, const InputTensors&, const CallParameters&,
                                       const Progress&, const Moves&);
template BackwardResult<float> backward(const compiler::CompiledProblem&, const InputTensors&, const CallParameters&,
                                        const Progress&, const Moves&);
template BackwardResult<double> backward(const compiler::CompiledProblem&, const InputTensors&, const CallParameters&,
                                         const Progress&, const Moves&);

}  // namespace scoremod::backend::reference
