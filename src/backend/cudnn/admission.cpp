#include "backend/cudnn/admission.hpp"

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "backend/cudnn/lowering/fused_gradient.hpp"
#include "backend/cudnn/trial_run.hpp"
#include "base/fail.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"

namespace scoremod::embedded {
// The verdicts of admitted/, made a constant of the library by CMake.
extern const std::string_view kCudnnAdmittedSm90;
}  // namespace scoremod::embedded

namespace scoremod::backend::cudnn {
namespace {

/// To be raised when what a trial runs or what admission_key() says changes.
constexpr int kAdmissionRevision = 1;

const char* sign_of(double value) {
  if (value == 0) return "0";
  if (value == 1) return "1";
  return value > 0 ? "+" : value < 0 ? "-" : "nan";
}

/// A copy in which only the structure of tensors and constants is left.
ModifierGraph structure_of(ModifierGraph graph) {
  for (ModifierTensor& tensor : graph.tensors) {
    for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
      tensor.dims[i] = tensor.dims[i] == 1 ? 1 : 2;
      tensor.strides[i] = tensor.dims[i] == 1 ? 1 : tensor.strides[i] == 0 ? 0 : tensor.strides[i] == 1 ? 1 : 2;
    }
  }
  for (ModifierNode& node : graph.nodes) {
    for (Ref& input : node.inputs) {
      if (input.kind == Ref::Kind::kFloat && std::string_view(sign_of(input.float_value)).find_first_of("+-") == 0) {
        input.float_value = input.float_value > 0 ? 2.0f : -2.0f;
      }
      if (input.kind == Ref::Kind::kInt32 && input.int_value != 0 && input.int_value != 1) {
        input.int_value = input.int_value > 0 ? 2 : -2;
      }
    }
    if (node.band) node.band->bound = node.band->bound > 0 ? 1 : node.band->bound < 0 ? -1 : 0;
  }
  return graph;
}

const char* relation(std::int64_t x, std::int64_t y) { return x == y ? "=" : x < y ? "<" : ">"; }
/// Of a bias's gradient: its dtype, and for each dimension whether it is summed over and is the densest.
std::string gradient_text(const BiasGradient& gradient) {
  std::string text = concat(" with the gradient of a ", to_string(gradient.dtype), " bias ");
  for (std::size_t i = 0; i < gradient.tensor.dims.size(); ++i) {
    text += gradient.tensor.dims[i] == 1 ? "1" : gradient.tensor.strides[i] == 1 ? "d" : "n";
  }
  return text;
}

const char* count(std::int64_t n) { return n == 1 ? "1" : "n"; }

/// The verdicts that ship with the library: keys that were seen to be right.
const std::set<std::string, std::less<>>& shipped_keys() {
  static const std::set<std::string, std::less<>> keys = [] {
    std::set<std::string, std::less<>> admitted;
    const auto json = nlohmann::json::parse(embedded::kCudnnAdmittedSm90);
    for (const auto& result : json.at("results")) {
      if (result.at("verdict") == kAdmittedVerdict) admitted.insert(result.at("key").get<std::string>());
    }
    return admitted;
  }();
  return keys;
}

Bytes bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

AdmissionVerdict verdict_of(std::string_view text) {
  return text == kAdmittedVerdict ? AdmissionVerdict{} : AdmissionVerdict{false, std::string(text)};
}

AdmissionVerdict judge(const std::vector<OutputError>& outputs, Direction direction) {
  for (const OutputError& output : outputs) {
    if (output.right()) continue;
    return {false,
            concat("a trial run of the ", direction == Direction::kForward ? "forward" : "backward",
                   " on this device gave a wrong ", output.name, ": relative error ", output.error,
                   ", expected at most ", output.tolerance, "; cuDNN accepted the graph and computed something else")};
  }
  return {};
}

/// Verdicts of this process, by key.
class Verdicts {
 public:
  bool find(const std::string& key, AdmissionVerdict& verdict) {
    const std::scoped_lock lock(mutex_);
    const auto found = verdicts_.find(key);
    if (found == verdicts_.end()) return false;
    verdict = found->second;
    return true;
  }
  void put(const std::string& key, const AdmissionVerdict& verdict) {
    const std::scoped_lock lock(mutex_);
    verdicts_[key] = verdict;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, AdmissionVerdict> verdicts_;
};

bool find_stored(const std::string& key, AdmissionVerdict& verdict) {
  if (shipped_keys().contains(key)) {
    verdict = {};
    return true;
  }
  const auto stored = plans::plan_store()->load(plans::RecordKind::kAdmission, bytes_of(key));
  if (!stored) return false;
  verdict = verdict_of({reinterpret_cast<const char*>(stored->data()), stored->size()});
  return true;
}

void store(const std::string& key, const AdmissionVerdict& verdict, const DeviceTarget& target,
           const std::string& label) {
  plans::plan_store()->save({plans::RecordKind::kAdmission, "cudnn " + target.cudnn_version,
                             architecture_text(target.device), label, bytes_of(key),
                             bytes_of(verdict.admitted ? kAdmittedVerdict : std::string_view(verdict.reason))});
}

}  // namespace

AdmissionMode admission_mode() {
  const char* value = std::getenv("SCOREMOD_ADMISSION");
  const std::string_view mode = value == nullptr ? "" : value;
  if (mode.empty() || mode == "first_use") return AdmissionMode::kFirstUse;
  if (mode == "always") return AdmissionMode::kAlways;
  if (mode == "never") return AdmissionMode::kNever;
  fail_argument("SCOREMOD_ADMISSION: expected first_use, always or never, found '", mode, "'");
}

std::string admission_key(const LoweredModifier& modifier, const AttentionProblem& problem, const PlanTask& task,
                          const DeviceTarget& target) {
  const Direction direction = task.direction;
  std::string computed;
  for (const ComputedOperand& operand : modifier.computed) {
    computed += concat(" ", to_string(operand.type), "[");
    for (const bool axis : operand.axes) computed += axis ? 'n' : '1';
    computed += ']';
  }
  return concat("revision ", kAdmissionRevision, ", ", kPlanRevision, "; ", target.architecture, "; cudnn ",
                target.cudnn_version, "; ", direction == Direction::kForward ? "forward" : "backward", " ",
                to_string(problem.dtype),
                direction == Direction::kBackward && problem.deterministic ? " deterministic" : "",
                task.operand_gradient ? gradient_text(bias_gradient(problem, *task.operand_gradient)) : "", "; dims ",
                problem.dim_qk, " ", problem.dim_v, "; batch ", count(problem.batch), " heads ",
                count(problem.heads_kv), " group ", count(problem.heads_q / problem.heads_kv), "; rows ",
                count(problem.seq_q), " ", relation(problem.seq_q, problem.seq_kv), " keys; computed", computed, "\n",
                to_string(structure_of(modifier.graph)));
}

AdmissionVerdict admission(const compiler::CompiledProblem& problem, const PlanTask& task,
                           const LoweredModifier& modifier, const DeviceTarget& target,
                           const MakeTrialPlan& make_plan) {
  const AdmissionMode mode = admission_mode();
  if (mode == AdmissionMode::kNever) return {};
  static Verdicts verdicts;
  const std::string key = admission_key(modifier, problem.problem, task, target);
  AdmissionVerdict verdict;
  if (verdicts.find(key, verdict)) return verdict;
  if (mode == AdmissionMode::kAlways || !find_stored(key, verdict)) {
    const plans::CountedWork work(plans::WorkKind::kTrial);
    const compiler::CompiledProblem trial = trial_problem(problem);
    verdict = judge(trial_run(trial, task, *make_plan(trial)), task.direction);
    store(key, verdict, target, concat("trial of a ", modifier.graph.nodes.size(), "-node modifier"));
  }
  verdicts.put(key, verdict);
  return verdict;
}

}  // namespace scoremod::backend::cudnn
