#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "scoremod/explain.hpp"

#include "base/fail.hpp"
#include "problem/problem_topics.hpp"

namespace scoremod {
namespace {

constexpr int kNameWidth = 12;

std::string bytes_text(std::size_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::ostringstream out;
  out << std::setprecision(unit == 0 ? 4 : 3) << std::defaultfloat << (value >= 1000 ? std::round(value) : value) << " "
      << kUnits.at(unit);
  return out.str();
}

/// "1.07 G": three digits and an SI prefix.
std::string count_text(double value) {
  constexpr std::array<const char*, 7> kPrefixes{"", " k", " M", " G", " T", " P", " E"};
  std::size_t prefix = 0;
  while (value >= 999.5 && prefix + 1 < kPrefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  std::ostringstream out;
  out << std::setprecision(3) << value << kPrefixes.at(prefix);
  return out.str();
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::ostringstream out;
  out << "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out << (i > 0 ? ", " : "") << shape[i];
  out << "]";
  return out.str();
}

/// Each line of `text`, indented.
std::string indented(const std::string& text) {
  std::istringstream lines(text);
  std::string line, out;
  while (std::getline(lines, line)) out += "    " + line + "\n";
  return out;
}

class Writer {
 public:
  explicit Writer(const Explanation& explanation) : explanation_(explanation) {}

  std::string run() {
    problem();
    mask();
    program("program", explanation_.program);
    if (explanation_.compiled != explanation_.program) program("compiled", explanation_.compiled);
    if (!explanation_.derivative.empty()) program("derivative", explanation_.derivative);
    steps();
    work();
    tensors();
    backends();
    for (const PatternExplanation& direction : explanation_.patterns) patterns(direction);
    return out_.str();
  }

 private:
  std::ostream& row(const std::string& name) { return out_ << std::left << std::setw(kNameWidth) << name; }

  void problem() {
    // Every member is named, so a new one does not compile until it is printed here, or seen to be printed elsewhere,
    // as the tensors and the program are below.
    static_assert(problem::kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions,
                                      BackwardOptions, ScoreProgram>);
    const AttentionProblem& asked = explanation_.problem;
    const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged, lengths,
                 index_offsets] = problem::topic<Sequences>(asked);
    const auto& [dtype, dtype_kv, dtype_o, dtype_d_o, dtype_gradients] = problem::topic<TensorDTypes>(asked);
    const auto& [q, k, v, o, d_o, dq, dk, dv] = problem::topic<TensorLayouts>(asked);
    const auto& [scale, sink, dropout, dropout_keys] = problem::topic<SoftmaxOptions>(asked);
    const auto& [stats, max_logit, amax_o] = problem::topic<OutputOptions>(asked);
    const auto& [backward, given_deltas, deterministic, amax_gradients] = problem::topic<BackwardOptions>(asked);
    [[maybe_unused]] const auto& [program, operands] = problem::topic<ScoreProgram>(asked);
    row("problem") << "batch " << batch << ", heads " << heads_q;
    if (heads_kv != heads_q) out_ << " over " << heads_kv;
    out_ << ", " << seq_q << " queries x " << seq_kv << " keys, dim " << dim_qk;
    if (dim_v != dim_qk) out_ << " / " << dim_v;
    if (tokens_q) out_ << ", " << *tokens_q << " tokens of queries";
    if (tokens_kv) out_ << ", " << *tokens_kv << " tokens of keys";
    if (paged) out_ << ", keys in " << paged->blocks << " blocks of " << paged->block_size;
    out_ << ", " << to_string(dtype) << (dtype_kv ? concat(", k and v ", to_string(*dtype_kv)) : std::string())
         << (dtype_o ? concat(", o ", to_string(*dtype_o)) : std::string()) << ", scale "
         << explanation_.problem.effective_scale()
         << (d_o || dq || dk || dv ? ", gradients in layouts of their own" : "")
         << (lengths.q ? ", lengths of queries" : "") << (lengths.kv ? ", lengths of keys" : "")
         << (sink == Sink::kNone ? std::string() : std::string(", sink ") + to_string(sink))
         << (dropout > 0 ? concat(", dropout ", dropout) : std::string()) << (dropout_keys ? " by keys" : "")
         << (backward ? ", backward" : "") << (given_deltas ? " with given deltas" : "") << (stats ? ", stats" : "")
         << (max_logit ? ", max logit" : "") << (amax_o ? ", amax of o" : "")
         << (amax_gradients ? ", amax of dq, dk and dv" : "") << (index_offsets ? ", index offsets" : "")
         << (deterministic ? ", deterministic" : "") << "\n";
  }

  void mask() {
    const MaskExplanation& mask = explanation_.mask;
    row("mask") << mask.kind;
    if (mask.band) {
      out_ << ": ";
      if (mask.band->left) out_ << -*mask.band->left << " <= ";
      out_ << (mask.band->anchor == "top-left" ? "kv_idx - q_idx" : "kv_idx - q_idx - (seq_kv - seq_q)");
      if (mask.band->right) out_ << " <= " << *mask.band->right;
    }
    out_ << "\n";
    for (const auto& term : mask.terms) out_ << "  and " << term.kind << ":\n" << indented(term.program);
    if (mask.map.rows.empty()) return;
    out_ << "  " << mask.map.tile_q << " x " << mask.map.tile_kv
         << " scores each; # all kept, . none, + some, or operands decide (batch 0, head 0):\n";
    for (const std::string& row : mask.map.rows) out_ << "    " << row << "\n";
  }

  void program(const char* name, const std::string& text) { out_ << name << "\n" << indented(text); }

  void steps() {
    out_ << "steps\n";
    for (const CompilerStep& step : explanation_.steps) {
      out_ << "    " << std::left << std::setw(20) << step.name << std::right << std::setw(10) << std::fixed
           << std::setprecision(1) << step.microseconds << std::defaultfloat << std::setprecision(6) << " us\n";
      out_ << indented(indented(step.program));
    }
  }

  void work() {
    const WorkEstimate& work = explanation_.work;
    const char* bound = work.exact ? "" : "at most ";
    row("work") << bound << count_text(work.forward_flops) << "FLOP forward";
    if (explanation_.problem.backward) out_ << ", " << count_text(work.backward_flops) << "FLOP backward";
    out_ << "; " << bound << std::setprecision(3) << 100 * work.pairs / work.dense_pairs << std::setprecision(6)
         << "% of the pairs are kept; " << work.program_ops << " program operations for each";
    if (explanation_.problem.backward) out_ << ", " << work.derivative_ops << " backward";
    out_ << "\n";
  }

  void tensors() {
    out_ << "tensors\n";
    for (const TensorInfo& tensor : explanation_.tensors) {
      out_ << "    " << std::left << std::setw(20) << tensor.name << std::setw(6) << to_string(tensor.dtype)
           << std::setw(24) << shape_text(tensor.shape) << std::setw(16) << tensor.dimensions
           << bytes_text(tensor.bytes) << (tensor.has_gradient ? ", and its gradient" : "") << "\n";
    }
  }

  std::string chosen_text(const BackendExplanation& backend) const {
    if (backend.chosen && (backend.chosen_backward || !explanation_.problem.backward)) return " (chosen)";
    if (backend.chosen) return " (chosen for the forward)";
    return backend.chosen_backward ? " (chosen for the backward)" : "";
  }

  void backends() {
    out_ << "backends    chosen by " << explanation_.decided_by << "\n";
    for (const BackendExplanation& backend : explanation_.backends) {
      out_ << "    " << std::left << std::setw(20) << backend.support.backend
           << (backend.support.supported ? "supported" : "not supported");
      if (backend.forward_workspace_bytes)
        out_ << ", workspace " << bytes_text(*backend.forward_workspace_bytes) << " forward";
      if (backend.backward_workspace_bytes)
        out_ << ", " << bytes_text(*backend.backward_workspace_bytes) << " backward";
      out_ << chosen_text(backend) << "\n";
      for (const UnsupportedReason& reason : backend.support.reasons) out_ << indented("because " + to_string(reason));
      if (!backend.why_not_chosen.empty()) out_ << indented("not chosen: " + backend.why_not_chosen);
      for (const std::string& note : backend.support.notes) out_ << indented(note);
    }
  }

  /// " 1.08 ms", or nothing where a time is not known.
  static std::string time_text(const std::optional<double>& milliseconds) {
    if (!milliseconds) return "";
    std::ostringstream out;
    out << " " << std::setprecision(3) << *milliseconds << " ms";
    return out.str();
  }

  /// A candidate's patterns; of one that is not the first that has any, those that it differs by.
  void pattern_lines(const PatternCandidateExplanation& candidate, const PatternExplanation& direction) {
    using Patterns = std::vector<PatternCandidateExplanation::Pattern>;
    if (candidate.patterns.empty()) return;
    const auto& first =
        *std::ranges::find_if_not(direction.candidates, &Patterns::empty, &PatternCandidateExplanation::patterns);
    const auto write_missing = [&](const char* word, const Patterns& patterns, const Patterns& others) {
      for (const auto& pattern : patterns) {
        const auto same = [&](const auto& other) { return other.name == pattern.name; };
        if (std::ranges::any_of(others, same)) continue;
        out_ << "        " << word << pattern.name << time_text(pattern.milliseconds) << "\n";
      }
    };
    const bool is_first = &candidate == &first;
    write_missing(is_first ? "" : "with ", candidate.patterns, is_first ? Patterns{} : first.patterns);
    write_missing("without ", first.patterns, candidate.patterns);
  }

  /// " (dq, dk, dv, d_slopes)"; nothing of a forward.
  static std::string gradients_text(const PatternExplanation& direction) {
    std::string text;
    for (const std::string& name : direction.gradients) text += (text.empty() ? " (" : ", ") + name;
    return text.empty() ? text : text + ")";
  }

  void patterns(const PatternExplanation& direction) {
    out_ << "candidates, " << direction.direction << gradients_text(direction) << ", "
         << (direction.architecture.empty() ? to_string(direction.memory) : direction.architecture);
    if (!direction.verified) {
      out_ << " (not verified here: seen to be right on " << direction.seen_on << ", whose times these are)";
    }
    if (direction.plain_milliseconds) out_ << "; without a modifier" << time_text(direction.plain_milliseconds);
    out_ << "\n";
    for (const PatternCandidateExplanation& candidate : direction.candidates) {
      out_ << "    "
           << (candidate.chosen            ? "runs"
               : candidate.refusal.empty() ? "or"
                                           : "not")
           << ": " << candidate.backend << ", " << candidate.nodes << " nodes, predicted"
           << time_text(candidate.predicted_milliseconds) << " (" << candidate.prediction_source << ")";
      if (candidate.measured_milliseconds) out_ << ", measured" << time_text(candidate.measured_milliseconds);
      if (candidate.computed_operands > 0) out_ << ", " << candidate.computed_operands << " computed beforehand";
      if (candidate.workspace_bytes) out_ << ", workspace " << bytes_text(*candidate.workspace_bytes);
      out_ << "\n";
      pattern_lines(candidate, direction);
      if (!candidate.refusal.empty()) out_ << indented("    because " + candidate.refusal);
    }
    for (const std::string& reason : direction.reasons) out_ << indented(reason);
  }

  const Explanation& explanation_;
  std::ostringstream out_;
};

}  // namespace

std::string to_text(const Explanation& explanation) { return Writer(explanation).run(); }

}  // namespace scoremod
