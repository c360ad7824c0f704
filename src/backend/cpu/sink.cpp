#include "backend/cpu/sink.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/row_kernels.hpp"
#include "base/element.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend::cpu {
namespace {

std::int64_t entry_of(const OperandView& sink, std::int64_t head) {
  return head * sink.axis_strides[static_cast<std::size_t>(Axis::kHead)];
}

/// Over the rows of one batch and head.
class HeadGradient {
 public:
  HeadGradient(const AttentionShape& shape, const BackwardTensors& tensors, const RowTermArrays& terms)
      : shape_(shape), tensors_(tensors), terms_(terms), o_(shape.padded_v), d_o_(shape.padded_v) {}

  double of(std::int64_t b, std::int64_t h, float sink) {
    const Operands operands = tensors_.operands;
    const RowSource o = AttentionShape::rows(tensors_.o, shape_.o, b, h, operands);
    const RowSource d_o = AttentionShape::rows(tensors_.d_o, shape_.d_o, b, h, operands);
    const problem::HeadRows lse = shape_.lse.rows(b, h, operands);
    double sum = 0;
    const std::int64_t end = shape_.q.positions(b, operands);
    for (std::int64_t i = 0; i < end; ++i) {
      const auto row = shape_.query_row(b, h, i);
      const double remainder = terms_.remainders == nullptr ? 0 : static_cast<double>(terms_.remainders[row]);
      const double distance = static_cast<double>(sink) - static_cast<double>(tensors_.lse[lse.row(i)]) - remainder;
      const double weight = takes_all(sink) ? 1 : std::exp(distance);
      sum -= weight * static_cast<double>(terms_.deltas != nullptr ? terms_.deltas[row] : delta(o, d_o, i));
    }
    return sum;
  }

 private:
  float delta(const RowSource& o, const RowSource& d_o, std::int64_t i) {
    pack_rows(o, i, 1, 1, o_.data(), shape_.padded_v);
    pack_rows(d_o, i, 1, 1, d_o_.data(), shape_.padded_v);
    return dot(o_.data(), d_o_.data(), shape_.dim_v);
  }

  const AttentionShape& shape_;
  const BackwardTensors& tensors_;
  const RowTermArrays& terms_;
  std::vector<float> o_, d_o_;
};

}  // namespace

std::optional<float> sink_of(const AttentionProblem& problem, std::span<const OperandView> operands,
                             std::int64_t head) {
  if (problem.sink == Sink::kNone) return std::nullopt;
  if (problem.sink == Sink::kOffByOne) return 0.0f;
  const OperandView& sink = operands[*problem::sink_operand(problem)];
  const auto value = load_element<float>(sink.data, sink.dtype, entry_of(sink, head));
  if (value == -std::numeric_limits<float>::infinity()) return std::nullopt;
  return value;
}

void write_sink_gradient(const AttentionProblem& problem, const AttentionShape& shape,
                         std::span<const OperandView> operands, const BackwardTensors& tensors,
                         const RowTermArrays& terms) {
  const auto operand = problem::sink_operand(problem);
  if (!operand || tensors.d_operands[*operand] == nullptr) return;
  const OperandView& view = operands[*operand];
  HeadGradient gradient(shape, tensors, terms);
  for (std::int64_t h = 0; h < shape.heads_q; ++h) {
    double sum = 0;
    if (const auto sink = sink_of(problem, operands, h)) {
      for (std::int64_t b = 0; b < shape.batch; ++b) sum += gradient.of(b, h, *sink);
    }
    store_element(tensors.d_operands[*operand], view.dtype, entry_of(view, h), sum);
  }
}

}  // namespace scoremod::backend::cpu
