#pragma once

// Which of cuDNN's engines a frontend graph is built with. Included by engine.cpp and one test, as frontend_graph.hpp
// is.

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/graph/frontend_graph.hpp"
#include "backend/cudnn/graph/refusal.hpp"

namespace scoremod::backend::cudnn {

/// The outcome of a step that failed.
inline BuildOutcome outcome_of(const fe::error_t& status, const char* step) {
  const bool refused = status.code == fe::error_code_t::GRAPH_NOT_SUPPORTED ||
                       status.code == fe::error_code_t::ATTRIBUTE_NOT_SET || reports_only_refusals(status.err_msg);
  return {refused ? BuildStatus::kRefused : BuildStatus::kFailed, concat(step, ": ", status.err_msg), nullptr};
}

/// An engine and the values of its knobs.
struct EngineConfig {
  std::int64_t engine = 0;
  std::unordered_map<fe::KnobType_t, std::int64_t> knobs;
};

/// Reads cudnn-frontend's name of a configuration: "eng3_k24=36" is engine 3 with the value 36 of knob 24, a
/// cudnnBackendKnobType_t. Nothing for a text of another form.
inline std::optional<EngineConfig> engine_config(std::string_view name) {
  const auto number = [&](std::string_view before) -> std::optional<std::int64_t> {
    std::int64_t value = 0;
    if (!name.starts_with(before)) return std::nullopt;
    name.remove_prefix(before.size());
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
    if (error != std::errc()) return std::nullopt;
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    return value;
  };
  EngineConfig config;
  const auto engine = number("eng");
  if (!engine) return std::nullopt;
  config.engine = *engine;
  while (!name.empty()) {
    const auto knob = number("_k");
    const auto value = knob ? number("=") : std::nullopt;
    if (!value) return std::nullopt;
    config.knobs[fe::convert_from_backend_knob_type(static_cast<cudnnBackendKnobType_t>(*knob))] = *value;
  }
  return config;
}

/// Builds a graph with the first engine that can, of those that cuDNN's heuristics name for its sizes, or with the
/// wanted one alone. Where the first heuristics' engines are all refused, those of the next are asked.
class EngineBuild {
 public:
  /// `wanted` is cudnn-frontend's name of an engine; empty for the heuristics' choice.
  explicit EngineBuild(Graph& graph, std::string_view wanted = {},
                       std::vector<fe::HeurMode_t> heuristics = {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK})
      : graph_(graph), wanted_(wanted), heuristics_(std::move(heuristics)) {}

  /// Nothing once an engine is built; else every engine's own words.
  std::optional<BuildOutcome> run() {
    if (const auto status = graph_.create_execution_plans({heuristics_.front()}); status.is_bad()) {
      refuse(outcome_of(status, "create_execution_plans"));
    }
    const std::int64_t named = graph_.get_execution_plan_count();
    for (std::int64_t i = 0; i < named; ++i) {
      if ((!wanted_.empty() && name_of(i) != wanted_) || !build(i)) continue;
      while (wanted_.empty() && ++i < named) next_.push_back(name_of(i));
      return std::nullopt;
    }
    if (!wanted_.empty() && said_.empty() && build_wanted(named)) return std::nullopt;
    if (wanted_.empty() && !failed_ && build_other(named)) return std::nullopt;
    return none();
  }

  /// The name of the engine that was built.
  const std::string& built() const { return built_; }
  /// The names of those behind it, as EnginePlan::next_engines() has them.
  const std::vector<std::string>& next() const { return next_; }

 private:
  std::string name_of(std::int64_t plan) const {
    std::string name;
    static_cast<void>(graph_.get_plan_name_at_index(plan, name));
    return name;
  }

  bool build(std::int64_t plan) {
    const auto status = graph_.build_plan_at_index(plan);
    if (status.is_bad()) return refuse(outcome_of(status, "build_plan"));
    built_ = name_of(plan);
    return true;
  }

  /// An engine of the other heuristics, as plans behind the `tried` ones. Their errors count for nothing: cuDNN 9.19
  /// ends some in one that is no refusal, where the first heuristics' engines were all refused.
  bool build_other(std::int64_t tried) {
    for (std::size_t mode = 1; mode < heuristics_.size(); ++mode) {
      if (graph_.create_execution_plans({heuristics_[mode]}).is_bad()) continue;
      for (; tried < graph_.get_execution_plan_count(); ++tried) {
        if (graph_.build_plan_at_index(tried).is_bad()) continue;
        built_ = name_of(tried);
        return true;
      }
    }
    return false;
  }

  /// An engine that the heuristics do not name for this graph's sizes, as the plan behind those that they name.
  bool build_wanted(std::int64_t plan) {
    const auto config = engine_config(wanted_);
    if (!config) return refuse({BuildStatus::kFailed, concat("no engine of cuDNN is named '", wanted_, "'"), nullptr});
    const auto status = graph_.create_execution_plan(config->engine, config->knobs);
    if (status.is_bad()) return refuse(outcome_of(status, "create_execution_plan"));
    return build(plan);
  }

  bool refuse(const BuildOutcome& outcome) {
    failed_ = failed_ || outcome.status == BuildStatus::kFailed;
    if (std::ranges::find(said_, outcome.text) == said_.end()) said_.push_back(outcome.text);
    return false;
  }

  BuildOutcome none() const {
    BuildOutcome outcome{failed_ ? BuildStatus::kFailed : BuildStatus::kRefused, "", nullptr};
    for (const std::string& text : said_) outcome.text += concat(outcome.text.empty() ? "" : "; ", text);
    if (said_.empty()) outcome.text = "build_plan: cuDNN's heuristics name no engine";
    return outcome;
  }

  Graph& graph_;
  const std::string wanted_;
  const std::vector<fe::HeurMode_t> heuristics_;
  std::string built_;
  bool failed_ = false;
  std::vector<std::string> said_, next_;
};

}  // namespace scoremod::backend::cudnn
