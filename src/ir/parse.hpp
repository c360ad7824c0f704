#pragma once

#include <string_view>

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// Reads the text form:
///
///     operand slopes: f32 [h]             a broadcast operand: its axes among b, h, q_idx, kv_idx; [] is a scalar
///     table rel: f32 rank 2               a table, read as rel[i, j]
///
///     let d = q_idx - kv_idx              a name for a value
///     value = score + slopes * f32(d)     the modified score, f32
///
///     keep = q_idx >= kv_idx              the mask, bool; optional
///     d_score = upstream                  derivatives only
///     accumulate rel[h, d] += upstream    derivatives only
///
/// Statements end at a line's end or ';', comments start with '#'. Literals are 1 (i32), 1.0, 1e3, inf, nan (f32), true
/// and false. Operators bind, from loose to tight: |  ^  &  comparisons  + -  * / // %  prefix - !. No type is
/// converted silently. Throws Error(kInvalidArgument) with line, column and caret; kUnsupported past Builder's limits.
Program parse(std::string_view text);

}  // namespace scoremod::ir
