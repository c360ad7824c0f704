#include "backend/cpu/cpu_backend.hpp"

#include "backend/cpu/backward_plan.hpp"
#include "backend/cpu/forward_plan.hpp"
#include "backend/direct_candidate.hpp"
#include "backend/host_members.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

/// That of the committed benchmark (bench/results/cpu.json), for each core.
constexpr double kFlopsPerMillisecond = 50e6;

class CpuBackend final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  bool backward_reads_lse() const override { return false; }
  /// Nothing is built.
  bool serves_all_sizes() const override { return true; }
  std::vector<UnsupportedReason> objections(const CompiledProblem& compiled, const Task&,
                                            const Target*) const override {
    runs_every_member(compiled.problem);
    return {};
  }
  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                    std::vector<UnsupportedReason>&) const override {
    const double rate = kFlopsPerMillisecond * static_cast<double>(target.device.multiprocessors);
    return {direct_candidate(problem, task, rate, {cpu::make_forward_plan, cpu::make_backward_plan})};
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace scoremod::backend
