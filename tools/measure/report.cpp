#include "report.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "scoremod/compile_ahead.hpp"
#include "scoremod/error.hpp"

namespace scoremod::measure {
namespace {

using Json = nlohmann::ordered_json;

std::string first_line_of(const char* command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command, "r"), pclose);
  std::array<char, 256> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "unknown";
  const std::string text = line.data();
  return text.substr(0, text.find('\n'));
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

Json machine_json(bool on_device, const std::string& words) {
  Json machine{{"processor", processor()}, {"cores", std::thread::hardware_concurrency()}, {"device", nullptr}};
  if (on_device) machine["device"] = Json::parse(device_properties()).value("deviceName", "unknown");
  if (!words.empty()) machine["description"] = words;
  return machine;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// The fields that a case has before it is measured.
Json case_json(const BenchCase& bench_case) {
  const AttentionProblem& p = bench_case.problem;
  return {{"case", bench_case.name},
          {"direction", to_string(bench_case.direction)},
          {"batch", p.batch},
          {"heads", p.heads_q},
          {"heads_kv", p.heads_kv},
          {"sequence", p.seq_q},
          {"sequence_kv", p.seq_kv},
          {"head_dim", p.dim_qk},
          {"head_dim_v", p.dim_v},
          {"dtype", to_string(p.dtype)},
          {"program", p.program.to_string()}};
}

Json row_json(const Measurement& result) {
  Json row = case_json(result.bench_case);
  const bool known = result.error.empty();
  row["backend"] = known ? Json(result.backend) : Json(nullptr);
  row["ms"] = known ? Json(result.ms) : Json(nullptr);
  row["spread_ms"] = known ? Json(result.spread_ms) : Json(nullptr);
  row["tflops"] = known ? Json(result.tflops()) : Json(nullptr);
  row["reference_ms"] = or_null(result.reference_ms);
  row["ratio"] = or_null(result.ratio);
  row["difference"] = or_null(result.difference);
  row["tolerance"] = or_null(result.tolerance);
  row["build_ms"] = or_null(result.plan.build_ms);
  row["load_ms"] = or_null(result.plan.load_ms);
  row["compile_ms"] = or_null(result.plan.compile_ms);
  row["trial_ms"] = or_null(result.plan.trial_ms);
  row["static_us"] = or_null(result.plan.static_us);
  row["host_us"] = or_null(result.host_us);
  row["reference_host_us"] = or_null(result.reference_host_us);
  row["workspace_bytes"] = known ? Json(result.workspace_bytes) : Json(nullptr);
  row["error"] = known ? Json(nullptr) : Json(result.error);
  return row;
}

std::string cell(const std::optional<double>& value, const char* format) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value.value_or(0));
  std::string padded = text.data();
  return value ? padded : std::string(padded.size() - 1, ' ') + "-";
}

}  // namespace

std::string table_head(const TableColumns& columns) {
  std::string line = "case                 direction         ms  TFLOP/s";
  if (columns.reference) line += "   reference ms  ratio";
  if (columns.device) line += "  host us";
  if (columns.device && columns.reference) line += "  ref. us";
  if (columns.device) line += "   build ms  trial ms  load ms  static us";
  return line + "  workspace MB\n";
}

std::string table_line(const Measurement& result, const TableColumns& columns) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "%-20s %-9s", result.bench_case.name.c_str(),
                to_string(result.bench_case.direction));
  if (!result.error.empty()) return std::string(name.data()) + "  not measured: " + result.error + "\n";
  std::string line = name.data() + cell(result.ms, " %10.3f") + cell(result.tflops(), " %8.3f");
  if (columns.reference) line += cell(result.reference_ms, "   %12.3f") + cell(result.ratio, " %6.3f");
  if (columns.device) line += cell(result.host_us, "  %7.2f");
  if (columns.device && columns.reference) line += cell(result.reference_host_us, "  %7.2f");
  if (columns.device) {
    line += cell(result.plan.build_ms, "  %9.1f") + cell(result.plan.trial_ms, "  %8.1f") +
            cell(result.plan.load_ms, "  %7.2f") + cell(result.plan.static_us, "  %9.1f");
  }
  line += cell(static_cast<double>(result.workspace_bytes) / 1e6, "  %12.3f");
  if (!result.differing.empty() && result.difference && result.tolerance) {
    std::ostringstream text;
    text << "  DIFFERS: " << result.differing << " is " << *result.difference << " from float64, expected at most "
         << *result.tolerance;
    line += text.str();
  }
  return line + "\n";
}

Json report_json(std::span<const Measurement> results, const PlanReport& plans, const MeasurementOptions& options,
                 const ReportOrigin& origin) {
  Json report;
  report["machine"] = machine_json(plans.on_device, origin.machine);
  report["versions"] = origin.versions;
  report["commit"] = origin.commit.empty() ? first_line_of("git describe --always --dirty 2>/dev/null") : origin.commit;
  report["options"] = {
      {"backend", options.compile.backend}, {"threads", options.compile.threads}, {"repetitions", options.repetitions}};
  report["plans"] = {{"start_ms", or_null(plans.start_ms)},
                     {"filled_store_builds", or_null(plans.filled_store_builds)},
                     {"error", plans.error.empty() ? Json(nullptr) : Json(plans.error)}};
  report["results"] = Json::array();
  for (const Measurement& result : results) report["results"].push_back(row_json(result));
  return report;
}

std::string report_text(const Json& report) {
  return report.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace scoremod::measure
