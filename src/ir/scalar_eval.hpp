#pragma once

#include <cstdint>
#include <span>

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// One value of a program at one element. Which member holds it is the node's type.
template <class Real>
struct Scalar {
  Real f = 0;
  std::int32_t i = 0;
  bool b = false;
};

/// The op table's meaning as code. Real is float (constant folding) or double (the oracle). `node` is any op but a
/// leaf, `arg_type` the type of its first argument. Written for clarity; the tiled path has its own, vectorized,
/// evaluator.
template <class Real>
Scalar<Real> eval_op(const Node& node, Type arg_type, std::span<const Scalar<Real>> args);

extern template Scalar<float> eval_op(const Node&, Type, std::span<const Scalar<float>>);
extern template Scalar<double> eval_op(const Node&, Type, std::span<const Scalar<double>>);

/// The value of a kConstant node.
template <class Real>
Scalar<Real> constant_value(const Node& node);

extern template Scalar<float> constant_value(const Node&);
extern template Scalar<double> constant_value(const Node&);

}  // namespace scoremod::ir
