#include "check/rounding_band.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/element.hpp"
#include "check/gradient_band.hpp"
#include "check/row_weights.hpp"
#include "problem/implied_operands.hpp"
#include "problem/stored_unit.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;
using problem::TensorRole;

class Band {
 public:
  Band(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
       const backend::CallParameters& parameters, const ErrorSources& sources)
      : rows_(compiled, inputs, parameters, sources),
        store_o_(unit_roundoff(problem::dtype_of(rows_.problem, TensorRole::kO))),
        scale_o_(problem::StoredUnit(rows_.problem, TensorRole::kO).scale(inputs.operands)) {
    if (inputs.d_o != nullptr && compiled.backward) gradients_.emplace(compiled, inputs, parameters, sources, rows_);
  }

  void add_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    rows_.weigh(b, h, i);
    const bool empty = rows_.is_empty();
    forward_.lse.push_back(rows_.lse_move());
    forward_.max_logit.push_back(empty ? 0 : rows_.max_logit_move());
    for (std::size_t d = 0; d < rows_.o().size(); ++d) {
      const double move = empty ? 0 : rows_.o_moves()[d];
      forward_.o.push_back(empty ? 0 : scale_o_ * (move + store_o_ * std::abs(rows_.o()[d])));
      largest_o_move_ = std::max(largest_o_move_, move);
    }
    // A sink that has all of a row's weight still takes part of the gradient of an o that is given.
    const bool has_sink = problem::sink_operand(rows_.problem).has_value();
    if (gradients_ && (!empty || has_sink)) gradients_->add_row(b, h, i);
  }

  RoundingBand take() {
    forward_.amax_o = {largest_o_move_};
    return {std::move(forward_), gradients_ ? gradients_->take() : reference::BackwardResult<double>()};
  }

 private:
  RowWeights rows_;
  const double store_o_, scale_o_;
  std::optional<GradientBand> gradients_;
  reference::ForwardResult<double> forward_;
  double largest_o_move_ = 0;  ///< of all rows, without the store
};

}  // namespace

RoundingBand rounding_band(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
                           const backend::CallParameters& parameters, const ErrorSources& sources,
                           const reference::Progress& progress) {
  Band band(compiled, inputs, parameters, sources);
  reference::for_each_row(compiled.problem, progress,
                          [&](std::int64_t b, std::int64_t h, std::int64_t i) { band.add_row(b, h, i); });
  return band.take();
}

}  // namespace scoremod::checking
