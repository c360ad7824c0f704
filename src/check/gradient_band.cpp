#include "check/gradient_band.hpp"

#include <algorithm>
#include <cmath>

#include "backend/reference/dense_tensor.hpp"
#include "base/element.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;
using problem::TensorRole;

std::vector<double> given_o(const AttentionProblem& problem, const reference::InputTensors& inputs) {
  if (inputs.o == nullptr || !problem.given_deltas) return {};
  return reference::load_dense<double>(problem, TensorRole::kO, inputs.o, inputs.operands);
}

}  // namespace

GradientBand::GradientBand(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
                           const backend::CallParameters& parameters, const ErrorSources& sources, RowWeights& rows)
    : rows_(rows),
      store_gradients_(unit_roundoff(problem::dtype_of(rows.problem, TensorRole::kDQ))),
      store_o_(unit_roundoff(problem::dtype_of(rows.problem, TensorRole::kO))),
      d_o_(reference::load_dense<double>(rows.problem, TensorRole::kDO, inputs.d_o, inputs.operands)),
      given_o_(given_o(rows.problem, inputs)),
      derivative_program_(compiled.backward->program),
      derivative_(derivative_program_, rows.operands, parameters.offsets),
      derivative_error_(derivative_program_, sources.function_error),
      dq_slopes_(static_cast<std::size_t>(rows.problem.dim_qk)),
      gradient_(empty_gradient()),
      squares_(empty_gradient()) {
  for (const std::vector<double>& entries : gradient_.d_operands) operand_slopes_.emplace_back(entries.size());
}

reference::BackwardResult<double> GradientBand::take() const {
  reference::BackwardResult<double> band;
  const auto finish = [](std::vector<double>& out, const std::vector<double>& squares, const std::vector<double>& sums,
                         double store) {
    for (std::size_t i = 0; i < squares.size(); ++i) out.push_back(std::sqrt(squares[i]) + store * std::abs(sums[i]));
  };
  finish(band.dq, squares_.dq, gradient_.dq, store_gradients_);
  finish(band.dk, squares_.dk, gradient_.dk, store_gradients_);
  finish(band.dv, squares_.dv, gradient_.dv, store_gradients_);
  // The largest magnitude moves by no more than the element that moves the most; it is not rounded.
  const auto largest = [](const std::vector<double>& squares) {
    return std::vector{std::sqrt(reference::largest_magnitude(squares).front())};
  };
  band.amax_dq = largest(squares_.dq);
  band.amax_dk = largest(squares_.dk);
  band.amax_dv = largest(squares_.dv);
  for (std::size_t i = 0; i < rows_.operands.size(); ++i) {
    const double store = is_floating(rows_.operands[i].dtype) ? unit_roundoff(rows_.operands[i].dtype) : 0;
    finish(band.d_operands.emplace_back(), squares_.d_operands[i], gradient_.d_operands[i], store);
  }
  return band;
}

reference::BackwardResult<double> GradientBand::empty_gradient() const {
  reference::BackwardResult<double> out{std::vector<double>(rows_.q.size()),
                                        std::vector<double>(rows_.k.size()),
                                        std::vector<double>(rows_.v.size()),
                                        {},
                                        {},
                                        {},
                                        {}};
  for (const reference::OperandView& operand : rows_.operands) {
    out.d_operands.emplace_back(is_floating(operand.dtype) ? static_cast<std::size_t>(operand.size()) : 0);
  }
  return out;
}

void GradientBand::add_row(std::int64_t b, std::int64_t h, std::int64_t i) {
  row_ = rows_.moves();
  const double* d_o = d_o_.data() + rows_.query_row(b, h, i) * rows_.problem.dim_v;
  const double* given = given_o_.empty() ? nullptr : given_o_.data() + rows_.query_row(b, h, i) * rows_.problem.dim_v;
  RoundedSum delta;
  double delta_square = 0;
  for (std::size_t d = 0; d < rows_.o().size(); ++d) {
    delta.add(d_o[d] * (given != nullptr ? given[d] : rows_.o()[d]));
    if (given != nullptr) continue;
    delta_square += square(store_o_ * d_o[d] * rows_.o()[d]) + square(d_o[d]) * rows_.o_sums()[d].square_move;
  }
  for (std::int64_t j = 0; j < rows_.problem.seq_kv; ++j) {
    Key& key = rows_.keys()[static_cast<std::size_t>(j)];
    if (!key.possible) continue;
    value_gradient(key, rows_.key_row(b, h, j), d_o);
    if (given == nullptr) delta_square += square(rows_.weight_move(key) * key.d_weight);
  }
  if (given == nullptr) delta_square += square(row_.weight * delta.value);
  row_.delta = unless_overflow(delta.magnitude, std::sqrt(delta_square + delta.square_move));
  add_sink_gradient(h, delta.value);
  for (std::int64_t j = 0; j < rows_.problem.seq_kv; ++j) {
    const Key& key = rows_.keys()[static_cast<std::size_t>(j)];
    if (!key.possible) continue;
    const double difference = key.d_weight - delta.value;
    const double move = key.weight * std::hypot((key.value_move + kWeight) * difference, key.d_weight_move) +
                        rows_.smallest_weight * std::abs(difference);
    score_gradient({b, h, i, j}, key, key.kept ? key.weight * difference : 0, move);
  }
  add_row_moves(rows_.query_row(b, h, i) * rows_.problem.dim_qk);
}

void GradientBand::add_sink_gradient(std::int64_t h, double delta) {
  const auto sink = problem::sink_operand(rows_.problem);
  if (!sink) return;
  const double relative = row_.lse + kWeight + kOperations * rows_.sink_distance();
  const auto entry = static_cast<std::size_t>(h);
  add_term(-rows_.sink_weight() * delta,
           rows_.sink_weight() * (row_.delta + relative * std::abs(delta)) + rows_.smallest_weight * std::abs(delta),
           gradient_.d_operands[*sink][entry], squares_.d_operands[*sink][entry]);
}

void GradientBand::value_gradient(Key& key, std::int64_t row, const double* d_o) {
  const double* v = rows_.v.data() + row * rows_.problem.dim_v;
  key.d_weight = key.d_weight_move = 0;
  if (key.share == 0) return;
  const double move = key.share * (rows_.weight_move(key) + key.weight * row_.lse);
  RoundedSum d_weight;
  for (std::int64_t d = 0; d < rows_.problem.dim_v; ++d) {
    d_weight.add(d_o[d] * v[d]);
    const auto at = static_cast<std::size_t>(row * rows_.problem.dim_v + d);
    add_term(key.kept ? key.share * key.weight * d_o[d] : 0, move * d_o[d], gradient_.dv[at], squares_.dv[at]);
  }
  key.d_weight = key.share * d_weight.value;
  key.d_weight_move =
      unless_overflow(key.share * d_weight.magnitude, key.share * std::sqrt(d_weight.square_move) + dropout_move(key));
}

double GradientBand::dropout_move(const Key& key) const {
  return rows_.problem.dropout > 0 ? 2 * kFloatRoundoff * std::abs(key.d_weight) : 0;
}

void GradientBand::add_term(double term, double move, double& sum, double& squares) {
  sum += term;
  squares += unless_overflow(std::abs(term) + std::abs(sum), square(move) + square(kFloatRoundoff * sum));
}

template <class Body>
void GradientBand::for_each_adjoint(const Body& body) {
  const std::vector<Root>& roots = derivative_program_.roots();
  for (std::size_t r = 0; r < roots.size(); ++r) {
    const bool is_adjoint = roots[r].kind == RootKind::kScoreAdjoint || roots[r].kind == RootKind::kOperandAdjoint;
    if (is_adjoint) body(roots[r], adjoints_[r]);
  }
}

void GradientBand::score_gradient(const reference::Element& at, const Key& key, double upstream, double upstream_move) {
  adjoints_.assign(derivative_program_.roots().size(), {});
  derivative_.evaluate(at, key.score, upstream);
  for_each_adjoint([&](const Root& root, Adjoint& adjoint) {
    adjoint.value = derivative_.at(root.node);
    if (root.kind == RootKind::kOperandAdjoint)
      adjoint.entry = static_cast<std::size_t>(derivative_.target_entry(root));
  });
  for (const double side : {-1.0, 1.0}) {
    derivative_.evaluate(at, key.score + side * key.score_move, upstream);
    for_each_adjoint([&](const Root& root, Adjoint& adjoint) {
      const double difference = std::abs(derivative_.at(root.node) - adjoint.value);
      adjoint.move = std::isnan(difference) ? difference : std::max(adjoint.move, difference);
    });
  }
  // Adjoints are linear in the upstream one, and so are their roundings. An adjoint that is 0 only because the upstream
  // one is has the roundings of the upstream's move.
  const double largest = std::abs(upstream) * (1 + row_.lse) + upstream_move + key.weight * row_.delta;
  if (largest == 0) return;
  derivative_.evaluate(at, key.score, largest);
  derivative_error_.analyze(derivative_);
  for_each_adjoint([&](const Root& root, Adjoint& adjoint) {
    const double slope = derivative_.at(root.node) / largest;
    adjoint.move +=
        std::abs(slope * upstream_move) + kOperations * std::abs(adjoint.value) + derivative_error_.at(root.node);
    const RowSlopes slopes{slope * key.weight, adjoint.value};
    if (root.kind == RootKind::kScoreAdjoint) {
      add_score_gradient(at, adjoint, slopes);
    } else {
      add_operand_gradient(root.operand, adjoint, slopes);
    }
  });
}

void GradientBand::add_score_gradient(const reference::Element& at, const Adjoint& d_score, const RowSlopes& slopes) {
  const std::int64_t q_start = rows_.query_row(at.batch, at.head, at.query) * rows_.problem.dim_qk;
  const std::int64_t k_start = rows_.key_row(at.batch, at.head, at.key) * rows_.problem.dim_qk;
  const double move = rows_.scale * (d_score.move + rows_.store * std::abs(d_score.value));
  const double dk_move = std::hypot(move, rows_.scale * std::sqrt(slopes.square_move(row_)));
  for (std::int64_t d = 0; d < rows_.problem.dim_qk; ++d) {
    const auto q = static_cast<std::size_t>(q_start + d);
    const auto k = static_cast<std::size_t>(k_start + d);
    add_term(rows_.scale * d_score.value * rows_.k[k], move * rows_.k[k], gradient_.dq[q], squares_.dq[q]);
    add_term(rows_.scale * d_score.value * rows_.q[q], dk_move * rows_.q[q], gradient_.dk[k], squares_.dk[k]);
    dq_slopes_[static_cast<std::size_t>(d)].add(rows_.scale * rows_.k[k], slopes);
  }
}

void GradientBand::add_operand_gradient(std::uint32_t operand, const Adjoint& adjoint, const RowSlopes& slopes) {
  const std::size_t entry = adjoint.entry;
  add_term(adjoint.value, adjoint.move, gradient_.d_operands[operand][entry], squares_.d_operands[operand][entry]);
  operand_slopes_[operand][entry].add(1, slopes);
  touched_.emplace_back(operand, entry);
}

void GradientBand::add_row_moves(std::int64_t q_start) {
  for (std::size_t d = 0; d < dq_slopes_.size(); ++d)
    squares_.dq[static_cast<std::size_t>(q_start) + d] += std::exchange(dq_slopes_[d], {}).square_move(row_);
  for (const auto& [operand, entry] : touched_)
    squares_.d_operands[operand][entry] += std::exchange(operand_slopes_[operand][entry], {}).square_move(row_);
  touched_.clear();
}

}  // namespace scoremod::checking
