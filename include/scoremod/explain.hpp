#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"
#include "scoremod/tensors.hpp"
#include "scoremod/work.hpp"

namespace scoremod {

struct ExplainOptions {
  CompileOptions compile;
  /// Keep the program's text after each compiler step.
  bool step_programs = false;
  /// Explain for the device with these properties (device_properties()'s text, see compile_ahead.hpp), which need not
  /// be on this machine: what its backends answer, and which of them a call there takes. Absent: for the current
  /// device, if there is one.
  std::optional<std::string> device_properties;
};

/// One step of the compiler, as it ran.
struct CompilerStep {
  std::string name;
  double microseconds = 0;
  std::string program;  ///< after the step; only with ExplainOptions::step_programs
};

/// The mask as the compiler understands it: keep == (band AND all terms).
struct MaskExplanation {
  /// "full", "empty", "band", "prefix", "padding", "documents" or "general": docs/reference/masks.md.
  std::string kind;
  /// -left <= d <= right, both ends included; an absent end is unbounded. Empty without a band.
  struct Band {
    std::optional<std::int64_t> left, right;
    /// "top-left": d = kv_idx - q_idx. "bottom-right": d = kv_idx - q_idx - (seq_kv - seq_q).
    std::string anchor;
  };
  std::optional<Band> band;
  struct Term {
    std::string kind;
    std::string program;  ///< the lines that compute it, the last of them `keep = ...`
  };
  std::vector<Term> terms;
  /// A small picture of batch 0 and head 0 without offsets: a row for each tile_q queries, a character for each tile_kv
  /// keys. '#': every score is kept, '.': none, '+': some are, or the operands decide. No rows where all is kept.
  struct Map {
    std::int64_t tile_q = 0, tile_kv = 0;
    std::vector<std::string> rows;
  };
  Map map;
};

/// One backend's answer.
struct BackendExplanation {
  Support support;
  bool chosen = false;           ///< whether Attention::compile would take it, for the forward
  bool chosen_backward = false;  ///< and for the backward (dq, dk and dv)
  /// If the forward is supported: why some direction that it could run does not take it. Empty if every direction takes
  /// it.
  std::string why_not_chosen;
  /// Bytes of scratch for each call, if supported.
  std::optional<std::size_t> forward_workspace_bytes;
  std::optional<std::size_t> backward_workspace_bytes;  ///< only for problems with backward
};

/// One way of a backend to do a direction.
struct PatternCandidateExplanation {
  struct Pattern {
    std::string name;  ///< docs/internals/cudnn.md
    /// The time of attention with this pattern alone when it was explored; absent if it was not timed.
    std::optional<double> milliseconds;
  };
  std::string backend;
  std::vector<Pattern> patterns;
  double predicted_milliseconds = 0;  ///< for the whole problem; by it candidates are ordered
  std::string prediction_source;
  std::optional<double> measured_milliseconds;  ///< where autotuning timed it
  std::size_t nodes = 0;                        ///< of the graph that cuDNN gets for the score function
  std::size_t computed_operands = 0;            ///< tensors that scoremod computes before cuDNN runs
  bool chosen = false;  ///< the one that runs; on another machine's device, unless a trial there refuses it
  bool asked = false;   ///< the backend was asked to build it
  std::optional<std::size_t> workspace_bytes;  ///< where it was built
  std::string refusal;                         ///< why it can't run, where that is known
};

/// How the allowed backends can compute one direction, in the order in which they are tried: fastest predicted first,
/// or in the caller's order. A call with tensors in this memory runs the chosen one. Times of patterns are for batch 4,
/// heads 16, sequence 4096, head dim 128 and bf16, on the device that docs/internals/cudnn.md names.
struct PatternExplanation {
  std::string direction;  ///< "forward" or "backward"
  /// The gradients that a backward writes, such as "dq", "dk", "dv" and "d_slopes", or the last alone. A call runs the
  /// backward with exactly the gradients that it asks for. If there is none, it runs that of dq, dk and dv, and then
  /// the other.
  std::vector<std::string> gradients;
  MemoryKind memory = MemoryKind::kHost;  ///< where the calls' tensors lie
  std::string architecture;               ///< of the device: "sm_90"; empty of the host
  /// The patterns were verified on this architecture with this version of cuDNN. If false, they were verified on
  /// another, and nothing runs before a trial on the device.
  bool verified = false;
  std::string seen_on;                       ///< where they were seen to be right, and timed: "sm_90 with cuDNN 9.19.0"
  std::optional<double> plain_milliseconds;  ///< without a score function
  std::vector<PatternCandidateExplanation> candidates;
  std::vector<std::string> reasons;  ///< why candidates are missing or were passed over
};

/// How scoremod compiles a problem, and why.
struct Explanation {
  AttentionProblem problem;
  MaskExplanation mask;
  std::string program;     ///< as the user gave it
  std::string compiled;    ///< after the compiler's steps
  std::string derivative;  ///< roots value, keep, d_score and the operand adjoints; empty without backward
  std::vector<CompilerStep> steps;
  WorkEstimate work;
  std::vector<TensorInfo> tensors;
  std::vector<BackendExplanation> backends;  ///< in the order of preference
  std::string decided_by;                    ///< "the caller", "SCOREMOD_BACKENDS", or "predicted time"
  /// One entry for each memory that the calls' tensors may lie in. A memory without a device, or with only the host's
  /// code, has none.
  std::vector<PatternExplanation> patterns;
};

/// Compiles and plans without running anything. Throws Error(kInvalidArgument) for an invalid problem or option; that
/// no backend supports the problem is no error here. With ExplainOptions::device_properties, throws as compile_ahead()
/// does, and as there this process can then run nothing on a device where there is no driver.
SCOREMOD_API Explanation explain(const AttentionProblem& problem, const ExplainOptions& options = {});
/// As JSON: the fields above by their names; docs/reference/command.md.
SCOREMOD_API std::string to_json(const Explanation& explanation);
/// As text for people.
SCOREMOD_API std::string to_text(const Explanation& explanation);

}  // namespace scoremod
