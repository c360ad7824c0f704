#include "report.hpp"

#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"

#include "blas_products.hpp"

namespace scoremod::bench {
namespace {

const Measurement* find(std::span<const Measurement> results, const std::string& name, Direction direction) {
  for (const Measurement& result : results) {
    if (result.bench_case.name == name && result.bench_case.direction == direction) return &result;
  }
  return nullptr;
}

void print_promise(const char* what, double found, const char* relation, double promised, bool kept) {
  std::printf("%-58s %8.2f  (promised: %s %.2f)%s\n", what, found, relation, promised, kept ? "" : "  MISSED");
}

void print_promises(std::span<const Measurement> results, const std::optional<PeakMemory>& memory) {
  const Measurement* full = find(results, "full", Direction::kForward);
  std::printf("\n");
  if (full != nullptr) {
    print_promise("full, part of OpenBLAS's rate", full->ratio(), "at least", 0.5, full->ratio() >= 0.5);
    if (const Measurement* causal = find(results, "causal", Direction::kForward)) {
      print_promise("causal, time over full", causal->ms / full->ms, "at most", 0.6, causal->ms <= 0.6 * full->ms);
    }
    if (const Measurement* cap = find(results, "soft_cap", Direction::kForward)) {
      print_promise("soft_cap, time over full", cap->ms / full->ms, "at most", 1.6, cap->ms <= 1.6 * full->ms);
    }
  }
  if (memory) {
    const double added = static_cast<double>(memory->added_bytes) / (1 << 20);
    print_promise("memory beyond inputs and outputs, B1 H1 S32768 D64, MiB", added, "below", 64, added < 64);
  }
}

std::string first_line_of(const char* command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command, "r"), pclose);
  char line[256] = "";
  if (!pipe || std::fgets(line, sizeof(line), pipe.get()) == nullptr) return "unknown";
  const std::string text = line;
  return text.substr(0, text.find('\n'));
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

nlohmann::json to_json(const Measurement& result) {
  const AttentionProblem& p = result.bench_case.problem;
  return {{"case", result.bench_case.name},
          {"direction", to_string(result.bench_case.direction)},
          {"problem",
           {{"batch", p.batch},
            {"heads_q", p.heads_q},
            {"heads_kv", p.heads_kv},
            {"seq_q", p.seq_q},
            {"seq_kv", p.seq_kv},
            {"dim_qk", p.dim_qk},
            {"dim_v", p.dim_v},
            {"dtype", to_string(p.dtype)},
            {"program", p.program.to_string()}}},
          {"ms", result.ms},
          {"spread_ms", result.spread_ms},
          {"gflops", result.gflops()},
          {"reference_ms", result.reference_ms},
          {"ratio", result.ratio()},
          {"workspace_bytes", result.workspace_bytes}};
}

}  // namespace

void print_table(std::span<const Measurement> results, const std::optional<PeakMemory>& memory) {
  std::printf("%-16s %-9s %10s %8s %9s %12s %7s %10s\n", "case", "direction", "ms", "+-", "GFLOP/s", "OpenBLAS ms",
              "ratio", "workspace");
  for (const Measurement& result : results) {
    std::printf("%-16s %-9s %10.3f %8.3f %9.1f %12.3f %7.2f %7.2f MB\n", result.bench_case.name.c_str(),
                to_string(result.bench_case.direction), result.ms, result.spread_ms, result.gflops(),
                result.reference_ms, result.ratio(), static_cast<double>(result.workspace_bytes) / 1e6);
  }
  print_promises(results, memory);
}

void write_json(const std::string& path, std::span<const Measurement> results, const std::optional<PeakMemory>& memory,
                const MeasurementOptions& options) {
  nlohmann::json json;
  json["machine"] = {{"processor", processor()}, {"cores", std::thread::hardware_concurrency()}};
  json["versions"] = {{"openblas", BlasProducts::version()}, {"compiler", "g++ " __VERSION__}};
  json["commit"] = first_line_of("git describe --always --dirty 2>/dev/null");
  json["options"] = {{"threads", options.threads}, {"repetitions", options.repetitions}, {"backend", options.backend}};
  for (const Measurement& result : results) json["results"].push_back(to_json(result));
  if (memory) {
    json["memory"] = {{"batch", memory->batch},
                      {"heads", memory->heads},
                      {"seq", memory->seq},
                      {"dim", memory->dim},
                      {"input_output_bytes", memory->input_output_bytes},
                      {"added_bytes", memory->added_bytes},
                      {"workspace_bytes", memory->workspace_bytes}};
  }
  std::ofstream file(path);
  file << json.dump(1) << '\n';
  if (!file.flush()) throw Error(ErrorCode::kEnvironment, "the results could not be written to " + path);
}

}  // namespace scoremod::bench
