#pragma once

#include "backend/reference/naive_attention.hpp"

namespace scoremod::backend::reference {

/// The oracle's results, made fast: float64 as forward<double> and backward<double> of naive_attention.hpp. It uses
/// matrix products of blocks, programs computed over strips of keys (strip_evaluator.hpp), and a thread for each batch
/// and KV head. A test compares them with the naive ones, up to the order of sums.
///
/// Use these for trials of plans, which run before a first call that waits. Use the naive ones if a result defines what
/// is right: in check() and in tests, which also hold these.
///
/// `threads` is the most that are used, 0 for one for each core; problems of few scores take one. `progress` is called
/// from any of them, one at a time. With several threads the sums of an operand's gradient over batches and heads are
/// made in no fixed order.
ForwardResult<double> fast_forward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                                   const CallParameters& parameters, int threads = 0, const Progress& progress = {});
BackwardResult<double> fast_backward(const compiler::CompiledProblem& compiled, const InputTensors& inputs,
                                     const CallParameters& parameters, int threads = 0, const Progress& progress = {});

}  // namespace scoremod::backend::reference
