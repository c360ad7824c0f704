#include "verification/verdict.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/environment.hpp"
#include "base/fail.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"

namespace scoremod::verification {
namespace {

/// Before a stored refusal: which rule made it. Raise it if trials become less strict: an older refusal may be right by
/// the new rule, and is tried once again.
constexpr std::string_view kRule = "by rule 2: ";

/// This process's knowledge of a subject. Its mutex is held while a trial runs, so that others wait for its verdict.
struct Remembered {
  std::mutex mutex;
  std::optional<Verdict> verdict;
};

Remembered& remembered(const Bytes& key) {
  static std::mutex mutex;
  // Never destroyed: threads may plan while the process ends.
  static auto& verdicts = *new std::map<std::string, std::unique_ptr<Remembered>>;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<Remembered>& entry = verdicts[{reinterpret_cast<const char*>(key.data()), key.size()}];
  if (!entry) entry = std::make_unique<Remembered>();
  return *entry;
}

std::optional<Verdict> known(const Subject& subject) {
  if (subject.shipped_right && subject.shipped_right()) return Verdict{};
  const auto stored = plans::plan_store()->load(plans::RecordKind::kVerification, subject.key);
  if (!stored) return std::nullopt;
  const std::string text(reinterpret_cast<const char*>(stored->data()), stored->size());
  if (text == kRightVerdict) return Verdict{};
  if (!text.starts_with(kRule)) return std::nullopt;
  return Verdict{false, text.substr(kRule.size())};
}

void store(const Subject& subject, const Verdict& verdict) {
  const std::string text = verdict.right ? std::string(kRightVerdict) : concat(kRule, verdict.reason);
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  plans::plan_store()->save({plans::RecordKind::kVerification, subject.engine, subject.architecture, subject.label,
                             subject.key, Bytes(data, data + text.size())});
}

}  // namespace

Mode verification_mode() {
  const std::string_view mode = environment_variable("SCOREMOD_VERIFICATION");
  if (mode.empty() || mode == "first_use") return Mode::kFirstUse;
  if (mode == "always") return Mode::kAlways;
  if (mode == "never") return Mode::kNever;
  fail_argument("SCOREMOD_VERIFICATION: expected first_use, always or never, found '", mode, "'");
}

Verdict verdict_of(const std::vector<OutputError>& outputs, backend::Direction direction) {
  for (const OutputError& output : outputs) {
    if (output.right()) continue;
    return {false, concat("a trial run of the ", direction == backend::Direction::kForward ? "forward" : "backward",
                          " on this device gave a wrong ", output.name, output.rows.empty() ? "" : " in ", output.rows,
                          ": relative error ", output.error, ", expected at most ", output.tolerance)};
  }
  return {};
}

bool needs_trial(const Subject& subject) {
  const Mode mode = verification_mode();
  if (mode == Mode::kNever) return false;
  Remembered& memory = remembered(subject.key);
  // While another thread runs the trial there is nothing to begin.
  const std::unique_lock lock(memory.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  if (!memory.verdict && mode != Mode::kAlways) memory.verdict = known(subject);
  return !memory.verdict;
}

Verdict verify(const Subject& subject, const std::function<Verdict()>& run) {
  const Mode mode = verification_mode();
  if (mode == Mode::kNever) return {};
  Remembered& memory = remembered(subject.key);
  const std::scoped_lock lock(memory.mutex);
  if (memory.verdict) return *memory.verdict;
  std::optional<Verdict> verdict = mode == Mode::kAlways ? std::nullopt : known(subject);
  if (!verdict) {
    const plans::CountedWork work(plans::WorkKind::kTrial);
    verdict = run();
    if (verdict->shown) store(subject, *verdict);
  }
  memory.verdict = verdict;
  return *verdict;
}

}  // namespace scoremod::verification
