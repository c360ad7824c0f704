#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scoremod/attention.hpp"

#include "check/check_subject.hpp"
#include "compiler/compiled_problem.hpp"
#include "support/emulated_device.hpp"

// Gradients of operands from tiles of scores, on a host, thread by thread, against the float64 oracle.

namespace scoremod::backend::kernels {

/// A problem with operands; of those named "half" numbers are bf16, and tables have 41 entries for each head.
struct OperandCase {
  const char* name;
  const char* program;
  Sink sink = Sink::kNone;
  float dropout = 0;
  IndexOffsets offsets = {};
  std::int64_t batch = 2, heads_q = 2, heads_kv = 1, seq_q = 140, seq_kv = 90;
  void (*change)(AttentionProblem&) = nullptr;
};
inline void PrintTo(const OperandCase& test, std::ostream* out) { *out << test.name; }

/// Two fifths of the room are empty, so that blocks of queries, and of keys, lie beyond a sequence's end.
void ragged(AttentionProblem& problem);
void with_given_deltas(AttentionProblem& problem);
/// A problem whose heads have two blocks of 64 dims.
void of_wider_heads(AttentionProblem& problem);
/// Wider heads of which a backward may TMA-load a bias.
void that_are_copied(AttentionProblem& problem);
void in_floats(AttentionProblem& problem);
/// And o and d_o in float32.
void with_given_deltas_of_floats(AttentionProblem& problem);

AttentionProblem problem_of(const OperandCase& from);

AnyShape portable(const AttentionProblem& problem);
/// The smaller one has room for diagonals at every head dim.
AnyShape hopper(const AttentionProblem& problem);

/// The shape of the backward beside whose kernels, or apart from them, gradients are summed.
using ShapeOfBackward = std::function<AnyShape(const AttentionProblem&)>;

using Fault = std::pair<std::string, std::string>;

/// The host's attention, with the operand gradients from the emulated device. If gradients are summed beside it, the
/// device's backward replaces the host's.
class EmulatedOperands {
 public:
  EmulatedOperands(const compiler::CompiledProblem& compiled, const AnyShape& shape, const Fault& fault, Gains gains);

  checking::Subject subject();
  /// Has the backward run in another order too, and compares operands' gradients.
  void run_twice() { twice_ = true; }
  bool has_same_bits() const { return same_bits_; }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };

  const compiler::CompiledProblem& compiled_;
  const AttentionProblem& problem_;
  bool twice_ = false, same_bits_ = false;
  Attention host_;
  test::EmulatedOperandKernels gradients_;
  std::vector<Line> workspace_;
};

CheckReport check_of(const OperandCase& from, const Fault& fault = {}, Gains gains = Gains::kApart,
                     const ShapeOfBackward& shape_of = portable);

}  // namespace scoremod::backend::kernels
