#include "peak_memory.hpp"

#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sys/resource.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "scoremod/attention.hpp"

namespace scoremod::bench {
namespace {

/// The largest resident set so far, in bytes.
std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

std::string this_executable() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

nlohmann::ordered_json to_json(const PeakMemory& memory) {
  return {{"batch", memory.batch},
          {"heads", memory.heads},
          {"seq", memory.seq},
          {"dim", memory.dim},
          {"input_output_bytes", memory.input_output_bytes},
          {"added_bytes", memory.added_bytes},
          {"workspace_bytes", memory.workspace_bytes}};
}

void print_peak_memory(std::int64_t seq, int threads) {
  PeakMemory result;
  result.seq = seq;
  AttentionProblem problem;
  problem.seq_q = problem.seq_kv = seq;
  problem.stats = true;
  CompileOptions options;
  options.threads = threads;
  const Attention attention = Attention::compile(problem, options);

  const auto elements = static_cast<std::size_t>(seq * problem.dim_qk);
  const std::vector<float> q(elements, 0.25f), k(elements, 0.5f), v(elements, 1.0f);
  std::vector<float> o(elements, 1.0f), lse(static_cast<std::size_t>(seq), 1.0f);
  const std::size_t bytes = elements * sizeof(float);
  result.input_output_bytes = static_cast<std::int64_t>(4 * bytes + lse.size() * sizeof(float));
  result.workspace_bytes = static_cast<std::int64_t>(attention.forward_workspace_bytes());

  const std::int64_t before = peak_resident_bytes();
  ForwardArgs args;
  args.q = {q.data(), bytes};
  args.k = {k.data(), bytes};
  args.v = {v.data(), bytes};
  args.o = {o.data(), bytes};
  args.lse = {lse.data(), lse.size() * sizeof(float)};
  attention.forward(args);
  result.added_bytes = peak_resident_bytes() - before;
  std::cout << to_json(result).dump() << '\n';
}

std::optional<PeakMemory> measure_peak_memory(std::int64_t seq, int threads) {
  const std::string command = "'" + this_executable() + "' " + kPeakMemoryOption + " " + std::to_string(seq) +
                              " --threads " + std::to_string(threads);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> child(popen(command.c_str(), "r"), pclose);
  if (!child) return std::nullopt;
  std::string output;
  std::array<char, 512> part{};
  while (std::fgets(part.data(), static_cast<int>(part.size()), child.get()) != nullptr) output += part.data();
  const nlohmann::json json = nlohmann::json::parse(output, nullptr, false);
  if (json.is_discarded()) return std::nullopt;
  PeakMemory result;
  result.seq = json["seq"];
  result.input_output_bytes = json["input_output_bytes"];
  result.added_bytes = json["added_bytes"];
  result.workspace_bytes = json["workspace_bytes"];
  return result;
}

}  // namespace scoremod::bench
