#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::checking {

/// How much float32 and float64 evaluation of a random program may differ.
enum class Continuity {
  /// A rounding error may flip a comparison. Compare structure, or evaluations in one precision, only.
  kAny,
  /// Comparisons, floor, ceil, round, sign, mod and casts act only on values that both precisions agree on, so values
  /// differ by rounding errors only. These are indices, constants, i32 and bool operands, and integers computed from
  /// them. Derivatives may still differ at the kinks of abs, min, max and relu.
  kContinuous,
  /// As kContinuous, without kinks in values that depend on the score or a float operand. Derivatives differ by
  /// rounding errors only, and finite differences converge.
  kSmooth,
};

/// Which keys a row keeps beside the program's mask, by the values of operands. A mask that empties rows in this way
/// shows in no program.
enum class RowClass {
  kAny,           ///< nothing
  kEmptyByBool,   ///< kept where the bool operand kRowKept is true
  kEmptyByTable,  ///< the value is -inf where the i32 table kRowWeight holds 0 or less: its logarithm is added
  kOneKey,        ///< only the key whose index the i32 operand kRowKey holds is kept
};
inline constexpr const char *kRowKept = "row_kept", *kRowWeight = "row_weight", *kRowKey = "row_key";

/// Every i32 index leaf is taken to be in [0, kRandomIndexLimit), so a test's sizes plus offsets must stay below.
inline constexpr std::int32_t kRandomIndexLimit = 4096;

struct IndexRange {
  std::int32_t low = 0, high = kRandomIndexLimit - 1;  ///< both included
};

struct RandomProgramOptions {
  /// The program has at most this many nodes, plus up to 12 for the roots.
  int max_nodes = 40;
  /// Whether there is a mask: the probability of a keep root.
  double mask_probability = 0.5;
  /// The probability that a mask compares a form of the key's index with a number in its range, so it keeps some keys.
  /// `indices` must be the problem's.
  double key_mask_probability = 0;
  /// By axis: where the global indices are.
  std::array<IndexRange, kAxisCount> indices;
  /// The probability that the value is select(condition, value, -inf): a mask in the score_mod.
  double infinity_mask_probability = 0;
  /// Operands declared, at most; each is a broadcast operand over any subset of the axes, of any type, or a table.
  int max_operands = 4;
  /// The largest rank of a table; 0 for no tables.
  int max_table_rank = 3;
  /// The ops to choose from, leaves aside; empty means every op. Tame programs use *, tanh, sigmoid and + more often,
  /// to keep values in range, when these are allowed.
  std::vector<Op> ops;
  Continuity continuity = Continuity::kContinuous;
  /// Tame: no intermediate value is infinite, NaN or ill-conditioned, no i32 wraps, and the value is within
  /// value_limit. This holds for scores within score_limit, f32 operands within float_limit, i32 operands within
  /// [int_low, int_high] and indices within `indices`. Otherwise anything goes, inf, NaN and INT_MIN constants
  /// included.
  bool tame = true;
  double score_limit = 40;
  double float_limit = 2;
  std::int32_t int_low = -8;
  std::int32_t int_high = 64;
  double value_limit = 40;
  /// Added to the value: far below zero it makes an LSE whose exponential underflows.
  float value_shift = 0;
  RowClass rows = RowClass::kAny;
  /// Adds d_score and accumulate roots (and uses 'upstream'): the shape of a derivative, for tests of structure. The
  /// adjoints are random nodes, not the value's derivative.
  bool adjoint_roots = false;
};

/// A well-typed program, the same for the same state of `random` with every standard library. The value depends on the
/// score nine times out of ten. A program may declare operands that it does not read.
Program random_program(std::mt19937_64& random, const RandomProgramOptions& options = {});

}  // namespace scoremod::checking
