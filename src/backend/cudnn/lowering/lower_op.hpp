#pragma once

#include "scoremod/program.hpp"

#include "backend/cudnn/lowering/graph_writer.hpp"

namespace scoremod::backend::cudnn {

/// Each writes one op of the program language on values that are already there; ops that cuDNN lacks are composed. They
/// throw NoPattern where there is no way to say the op.
Value lower_unary(GraphWriter& writer, Op op, Value x);
Value lower_binary(GraphWriter& writer, Op op, Value x, Value y);
/// `may_wrap` says that the difference of two i32 need not fit an i32.
Value lower_comparison(GraphWriter& writer, Op op, Value x, Value y, bool may_wrap);
Value lower_boolean(GraphWriter& writer, Op op, Value x, Value y);
Value lower_select(GraphWriter& writer, Value condition, Value x, Value y);

}  // namespace scoremod::backend::cudnn
