#include "verification/verdict.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/environment.hpp"
#include "base/fail.hpp"
#include "plans/erased_plan_cache.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"

namespace scoremod::verification {
namespace {

/// Before a stored refusal: which rule made it. Raise it if trials become less strict: an older refusal may be right by
/// the new rule, and is tried once again.
constexpr std::string_view kRule = "by rule 2: ";

/// Keys have some kB, and a process may compile new functions for days. What is forgotten is in the store, or is tried
/// again.
constexpr PlanCacheLimits kRemembered{4096, std::size_t{32} << 20};

/// This process's verdicts. While a trial runs, others wait for its verdict. Never destroyed: threads may plan while
/// the process ends.
plans::ErasedPlanCache& verdicts() {
  static auto& made = *new plans::ErasedPlanCache("verdict", kRemembered);
  return made;
}

/// The structural key, and behind it the engine. A verdict of any engine is also kept under the structure alone, which
/// needs_trial() reads before an engine is known.
Bytes key_of(const Subject& subject) {
  Bytes key = subject.key;
  if (subject.library_engine.empty()) return key;
  const auto* name = reinterpret_cast<const std::byte*>(subject.library_engine.data());
  key.insert(key.end(), name, name + subject.library_engine.size());
  return key;
}

plans::ErasedPlan remembered(Verdict verdict) {
  const std::size_t bytes = sizeof(verdict) + verdict.reason.size();
  return {std::make_shared<const Verdict>(std::move(verdict)), bytes, ""};
}

std::optional<Verdict> known(const Subject& subject) {
  if (subject.shipped_right && subject.shipped_right()) return Verdict{};
  const auto stored = plans::plan_store()->load(plans::RecordKind::kVerification, key_of(subject));
  if (!stored) return std::nullopt;
  const std::string text(reinterpret_cast<const char*>(stored->data()), stored->size());
  if (text == kRightVerdict) return Verdict{};
  if (!text.starts_with(kRule)) return std::nullopt;
  return Verdict{false, text.substr(kRule.size())};
}

void store(const Subject& subject, const Verdict& verdict, const Bytes& key) {
  const std::string text = verdict.right ? std::string(kRightVerdict) : concat(kRule, verdict.reason);
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  plans::plan_store()->save({plans::RecordKind::kVerification, subject.engine, subject.architecture, subject.label, key,
                             Bytes(data, data + text.size())});
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
  // While another thread runs the trial there is nothing to begin.
  const Bytes key = key_of(subject);
  if (verdicts().has_or_builds(key)) return false;
  std::optional<Verdict> verdict = mode == Mode::kAlways ? std::nullopt : known(subject);
  if (!verdict) return true;
  verdicts().get(key, [&] { return remembered(std::move(*verdict)); });
  return false;
}

Verdict verify(const Subject& subject, const std::function<Verdict()>& run) {
  const Mode mode = verification_mode();
  if (mode == Mode::kNever) return {};
  const Bytes key = key_of(subject);
  const plans::ErasedPlan found = verdicts().get(key, [&] {
    std::optional<Verdict> verdict = mode == Mode::kAlways ? std::nullopt : known(subject);
    if (!verdict) {
      const plans::CountedWork work(plans::WorkKind::kTrial);
      verdict = run();
      if (verdict->shown) store(subject, *verdict, key);
      if (verdict->shown && key != subject.key) store(subject, *verdict, subject.key);
    }
    return remembered(std::move(*verdict));
  });
  if (key != subject.key) verdicts().get(subject.key, [&] { return plans::ErasedPlan(found); });
  return *std::static_pointer_cast<const Verdict>(found.plan);
}

}  // namespace scoremod::verification
