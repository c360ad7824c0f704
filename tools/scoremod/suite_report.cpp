#include "suite_report.hpp"

#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <sstream>

#include <nlohmann/json.hpp>

#include "suite_summary.hpp"

namespace scoremod::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kWorst = 10;
constexpr std::size_t kListed = 20;

/// Four digits say all that an error can, and keep files small.
double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return std::strtod(text, nullptr);
}

Json rounded(const std::optional<double>& value) { return value ? Json(rounded(*value)) : Json(nullptr); }

/// A number in the unit of the oracle's norm, unless that is not above rounding.
double relative(const ErrorBound& bound, double value) {
  return bound.is_above_rounding() ? value / bound.scale : value;
}

std::string sizes_of(const AttentionProblem& p) {
  std::ostringstream text;
  text << "batch " << p.batch << ", heads " << p.heads_q << "/" << p.heads_kv << ", seq " << p.seq_q << "/" << p.seq_kv
       << ", dim " << p.dim_qk << "/" << p.dim_v << ", " << to_string(p.dtype);
  for (const auto& [name, tensor] : {std::pair{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}}) {
    text << ", " << name << " " << (tensor->strides ? "strided" : to_string(tensor->layout));
  }
  return text.str();
}

Json output_json(const SuiteOutput& output) {
  const ErrorBound& bound = output.check.l2;
  Json json{{"error", rounded(relative(bound, bound.error))},
            {"tolerance", rounded(relative(bound, bound.tolerance()))},
            {"part_of_tolerance", rounded(output.check.badness())},
            {"plain_attention", rounded(output.plain_attention_error)},
            {"ratio_to_plain_attention", rounded(output.ratio_to_plain_attention())}};
  if (output.check.left_out > 0) json["left_out"] = output.check.left_out;
  return json;
}

Json result_json(const SuiteResult& result) {
  Json json{{"problem", result.name},
            {"direction", to_string(result.direction)},
            {"verdict", to_string(result.verdict)},
            {"output", nullptr},
            {"backend", result.backend},
            {"error", nullptr},
            {"tolerance", nullptr},
            {"sizes", sizes_of(result.problem)},
            {"program", result.problem.program.to_string()}};
  if (const SuiteOutput* worst = result.worst()) {
    const ErrorBound& bound = worst->check.tighter();
    json["output"] = worst->check.name;
    json["error"] = rounded(relative(bound, bound.error));
    json["tolerance"] = rounded(relative(bound, bound.tolerance()));
  }
  json["reasons"] = result.reasons;
  json["outputs"] = Json::object();
  for (const SuiteOutput& output : result.outputs) json["outputs"][output.check.name] = output_json(output);
  return json;
}

Json summary_json(const SuiteReport& report) {
  Json json;
  for (const SuiteVerdict verdict :
       {SuiteVerdict::kRight, SuiteVerdict::kWrong, SuiteVerdict::kRefused, SuiteVerdict::kError}) {
    json[to_string(verdict)] = report.count(verdict);
  }
  json["seconds"] = rounded(report.seconds);
  const PlainAttentionSummary plain = summarize_plain_attention(report);
  json["plain_attention"] = {{"outputs", plain.compared},
                             {"beyond_twice_and_band", plain.far},
                             {"median_ratio", rounded(plain.median_ratio)},
                             {"largest_ratio", rounded(plain.largest_ratio)}};
  json["refused_by_reason"] = Json::array();
  for (const Refusal& refusal : refusals(report)) {
    json["refused_by_reason"].push_back(
        {{"count", refusal.count}, {"reason", refusal.reason}, {"example", refusal.example}});
  }
  return json;
}

void print_worst(const SuiteReport& report, std::ostream& out) {
  const std::vector<const SuiteResult*> worst = worst_results(report, kWorst);
  if (worst.empty()) return;
  out << "nearest to the tolerance, or furthest beyond it:\n";
  for (const SuiteResult* result : worst) {
    const OutputCheck& check = result->worst()->check;
    const ErrorBound& bound = check.tighter();
    out << "  " << std::left << std::setw(8) << check.badness() << std::setw(48) << result->name << std::setw(10)
        << to_string(result->direction) << std::setw(16) << check.name << " error " << relative(bound, bound.error)
        << ", tolerance " << relative(bound, bound.tolerance()) << "\n";
  }
}

void print_plain_attention(const SuiteReport& report, std::ostream& out) {
  const PlainAttentionSummary plain = summarize_plain_attention(report);
  if (plain.compared == 0) return;
  out << "error by that of plain attention on scores of the same deviation: " << plain.compared << " outputs, median "
      << plain.median_ratio << ", largest " << plain.largest_ratio << "; " << plain.far
      << " beyond twice that and the rounding band\n";
}

void print_failures(const SuiteReport& report, SuiteVerdict verdict, std::ostream& out) {
  std::size_t left = report.count(verdict);
  std::size_t listed = 0;
  for (const SuiteResult& result : report.results) {
    if (result.verdict != verdict || listed == kListed) continue;
    out << to_string(verdict) << ": " << result.name << " " << to_string(result.direction) << "\n";
    for (const std::string& reason : result.reasons) out << "    " << reason << "\n";
    ++listed;
  }
  left -= listed;
  if (left > 0) out << "and " << left << " more " << to_string(verdict) << "\n";
}

}  // namespace

std::string suite_json(const SuiteReport& report, const SuiteOrigin& origin) {
  const Json head{{"machine", origin.machine}, {"versions", {{"scoremod", SCOREMOD_VERSION}}},
                  {"commit", origin.commit},   {"backend", report.backend},
                  {"seed", report.seed},       {"summary", summary_json(report)}};
  std::string text = head.dump(2);
  text.erase(text.size() - 2);  // the closing brace, so that each result can have a line of its own
  text += ",\n  \"results\": [";
  const char* separator = "\n";
  for (const SuiteResult& result : report.results) {
    text += separator + result_json(result).dump();
    separator = ",\n";
  }
  return text + "\n  ]\n}\n";
}

std::string suite_text(const SuiteReport& report) {
  std::ostringstream out;
  out << std::setprecision(3);
  print_failures(report, SuiteVerdict::kWrong, out);
  print_failures(report, SuiteVerdict::kError, out);
  const std::vector<Refusal> reasons = refusals(report);
  if (!reasons.empty()) out << "refused, by reason:\n";
  for (std::size_t i = 0; i < reasons.size() && i < kListed; ++i) {
    out << "  " << std::left << std::setw(6) << reasons[i].count << reasons[i].reason << " (" << reasons[i].example
        << ")\n";
  }
  if (reasons.size() > kListed) out << "  and " << reasons.size() - kListed << " more reasons\n";
  print_worst(report, out);
  print_plain_attention(report, out);
  out << report.results.size() << " results in " << std::setprecision(4) << report.seconds << " s, seed " << report.seed
      << ":";
  for (const SuiteVerdict verdict :
       {SuiteVerdict::kRight, SuiteVerdict::kWrong, SuiteVerdict::kRefused, SuiteVerdict::kError}) {
    out << (verdict == SuiteVerdict::kRight ? " " : ", ") << report.count(verdict) << " " << to_string(verdict);
  }
  out << "\n";
  return out.str();
}

}  // namespace scoremod::cli
