#include <nlohmann/json.hpp>

#include "scoremod/explain.hpp"

#include "explain/reason_json.hpp"

namespace scoremod {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json mask_json(const MaskExplanation& mask) {
  Json json;
  json["kind"] = mask.kind;
  json["band"] = nullptr;
  if (mask.band) {
    json["band"] = {{"left", optional_json(mask.band->left)},
                    {"right", optional_json(mask.band->right)},
                    {"anchor", mask.band->anchor}};
  }
  json["terms"] = Json::array();
  for (const auto& term : mask.terms) json["terms"].push_back({{"kind", term.kind}, {"program", term.program}});
  json["map"] = {{"tile_q", mask.map.tile_q}, {"tile_kv", mask.map.tile_kv}, {"rows", mask.map.rows}};
  return json;
}

Json steps_json(const std::vector<CompilerStep>& steps) {
  Json json = Json::array();
  for (const CompilerStep& step : steps) {
    Json entry{{"name", step.name}, {"microseconds", step.microseconds}};
    if (!step.program.empty()) entry["program"] = step.program;
    json.push_back(std::move(entry));
  }
  return json;
}

Json work_json(const WorkEstimate& work) {
  return {{"pairs", work.pairs},
          {"dense_pairs", work.dense_pairs},
          {"exact", work.exact},
          {"forward_flops", work.forward_flops},
          {"backward_flops", work.backward_flops},
          {"forward_bytes", work.forward_bytes},
          {"backward_bytes", work.backward_bytes},
          {"program_ops", work.program_ops},
          {"derivative_ops", work.derivative_ops}};
}

Json tensors_json(const std::vector<TensorInfo>& tensors) {
  Json json = Json::array();
  for (const TensorInfo& tensor : tensors) {
    json.push_back({{"name", tensor.name},
                    {"dtype", to_string(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"strides", tensor.strides},
                    {"dimensions", tensor.dimensions},
                    {"bytes", tensor.bytes},
                    {"has_gradient", tensor.has_gradient}});
  }
  return json;
}

Json backends_json(const std::vector<BackendExplanation>& backends) {
  Json json = Json::array();
  for (const BackendExplanation& backend : backends) {
    Json answer{{"backend", backend.support.backend},
                {"supported", backend.support.supported},
                {"forward_supported", backend.support.forward_supported},
                {"chosen", backend.chosen},
                {"chosen_backward", backend.chosen_backward},
                {"why_not_chosen", backend.why_not_chosen.empty() ? Json(nullptr) : Json(backend.why_not_chosen)},
                {"memory", to_string(backend.support.memory)}};
    explaining::add_reasons(backend.support.reasons, answer);
    answer["notes"] = backend.support.notes;
    answer["forward_workspace_bytes"] = optional_json(backend.forward_workspace_bytes);
    answer["backward_workspace_bytes"] = optional_json(backend.backward_workspace_bytes);
    json.push_back(std::move(answer));
  }
  return json;
}

Json candidate_json(const PatternCandidateExplanation& candidate) {
  Json patterns = Json::array();
  for (const auto& pattern : candidate.patterns)
    patterns.push_back({{"pattern", pattern.name}, {"ms", optional_json(pattern.milliseconds)}});
  return {{"backend", candidate.backend},
          {"chosen", candidate.chosen},
          {"predicted_ms", candidate.predicted_milliseconds},
          {"prediction_source", candidate.prediction_source},
          {"measured_ms", optional_json(candidate.measured_milliseconds)},
          {"patterns", std::move(patterns)},
          {"nodes", candidate.nodes},
          {"computed_operands", candidate.computed_operands},
          {"asked", candidate.asked},
          {"workspace_bytes", optional_json(candidate.workspace_bytes)},
          {"refusal", candidate.refusal.empty() ? Json(nullptr) : Json(candidate.refusal)}};
}

Json patterns_json(const std::vector<PatternExplanation>& directions) {
  Json json = Json::array();
  for (const PatternExplanation& direction : directions) {
    Json candidates = Json::array();
    for (const auto& candidate : direction.candidates) candidates.push_back(candidate_json(candidate));
    json.push_back({{"direction", direction.direction},
                    {"gradients", direction.gradients},
                    {"memory", to_string(direction.memory)},
                    {"architecture", direction.architecture},
                    {"verified", direction.verified},
                    {"seen_on", direction.seen_on},
                    {"plain_ms", optional_json(direction.plain_milliseconds)},
                    {"candidates", std::move(candidates)},
                    {"reasons", direction.reasons}});
  }
  return json;
}

}  // namespace

std::string to_json(const Explanation& explanation) {
  Json json;
  json["problem"] = Json::parse(to_json(explanation.problem));
  json["mask"] = mask_json(explanation.mask);
  json["program"] = explanation.program;
  json["compiled"] = explanation.compiled;
  json["derivative"] = explanation.derivative.empty() ? Json(nullptr) : Json(explanation.derivative);
  json["steps"] = steps_json(explanation.steps);
  json["work"] = work_json(explanation.work);
  json["tensors"] = tensors_json(explanation.tensors);
  json["decided_by"] = explanation.decided_by;
  json["backends"] = backends_json(explanation.backends);
  json["patterns"] = patterns_json(explanation.patterns);
  return json.dump(2) + "\n";
}

}  // namespace scoremod
