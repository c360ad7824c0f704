#include "scoremod/c_api.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "scoremod/attention.hpp"
#include "scoremod/attention_cache.hpp"
#include "scoremod/compile_ahead.hpp"
#include "scoremod/error.hpp"
#include "scoremod/explain.hpp"
#include "scoremod/request_queue.hpp"

#include "base/fail.hpp"
#include "base/version.hpp"
#include "c_api/attention_handle.hpp"
#include "c_api/convert.hpp"
#include "c_api/guard.hpp"
#include "explain/reason_json.hpp"

using scoremod::c_api::convert;
using scoremod::c_api::give;
using scoremod::c_api::guard;
using scoremod::c_api::of_fixed_sizes;
using scoremod::c_api::require;

namespace {

void create_open(const scoremod::AttentionProblem& problem, const scoremod_compile_options* options,
                 scoremod_attention** attention) {
  *attention = new scoremod_attention{nullptr, std::make_shared<const scoremod::OpenAttention>(
                                                   scoremod::OpenAttention::compile(problem, convert(options)))};
}

void forward(const scoremod::Attention& attention, const scoremod_forward_args* args) {
  const auto call = convert(args);
  attention.forward(call.args, call.workspace);
}

void backward(const scoremod::Attention& attention, const scoremod_backward_args* args) {
  const auto call = convert(args);
  attention.backward(call.args, call.workspace);
}

/// The attention of a call's sizes. Throws Error(kInvalidArgument) for an attention of fixed sizes.
std::shared_ptr<const scoremod::Attention> at(const scoremod_attention* attention, const scoremod_sizes* sizes) {
  require(attention, "attention");
  if (!attention->open)
    scoremod::fail_argument(
        "attention: expected one whose problem leaves sizes open (null), found one of fixed sizes; ",
        "call it as it is");
  return attention->open->at(convert(sizes));
}

void run(const scoremod::Attention& attention, const scoremod_prepared_call& call) {
  if (call.forward != nullptr) return forward(attention, call.forward);
  backward(attention, call.backward);
}

}  // namespace

const std::shared_ptr<const scoremod::Attention>& scoremod::c_api::of_fixed_sizes(const scoremod_attention* attention) {
  require(attention, "attention");
  if (attention->attention == nullptr)
    fail_argument("attention: expected one of fixed sizes, found one whose problem leaves sizes open (null); ",
                  "scoremod_attention_at gives that of a call's sizes");
  return attention->attention;
}

extern "C" {

const char* scoremod_version(void) { return scoremod::version(); }

const char* scoremod_status_name(scoremod_status status) {
  using scoremod::ErrorCode;
  switch (status) {
    case SCOREMOD_OK: return "ok";
    case SCOREMOD_INVALID_ARGUMENT: return to_string(ErrorCode::kInvalidArgument);
    case SCOREMOD_UNSUPPORTED: return to_string(ErrorCode::kUnsupported);
    case SCOREMOD_ENVIRONMENT: return to_string(ErrorCode::kEnvironment);
    case SCOREMOD_BUG: return to_string(ErrorCode::kBug);
    case SCOREMOD_FULL: return to_string(scoremod::ReplyStatus::kFull);
    case SCOREMOD_SHUT_DOWN: return to_string(scoremod::ReplyStatus::kShutDown);
    case SCOREMOD_CONTEXT_LOST: return to_string(scoremod::ReplyStatus::kContextLost);
    default: return "unknown status";
  }
}

void scoremod_text_free(char* text) { std::free(text); }

scoremod_status scoremod_attention_create(const char* problem_json, const scoremod_compile_options* options,
                                          scoremod_attention** attention, char** message) {
  if (attention != nullptr) *attention = nullptr;
  return guard(message, [&] {
    require(problem_json, "problem_json");
    require(attention, "attention");
    const scoremod::AttentionProblem problem = scoremod::parse_problem(problem_json);
    if (scoremod::has_open_sizes(problem)) return create_open(problem, options, attention);
    *attention = new scoremod_attention{
        std::make_shared<const scoremod::Attention>(scoremod::Attention::compile(problem, convert(options))), nullptr};
  });
}

scoremod_status scoremod_attention_get(const char* problem_json, const scoremod_compile_options* options,
                                       scoremod_attention** attention, char** message) {
  if (attention != nullptr) *attention = nullptr;
  return guard(message, [&] {
    require(problem_json, "problem_json");
    require(attention, "attention");
    const scoremod::AttentionProblem problem = scoremod::parse_problem(problem_json);
    if (scoremod::has_open_sizes(problem)) return create_open(problem, options, attention);
    *attention = new scoremod_attention{scoremod::cached_attention(problem, convert(options)), nullptr};
  });
}

scoremod_status scoremod_attention_at(const scoremod_attention* attention, const scoremod_sizes* sizes,
                                      scoremod_attention** of_sizes, char** message) {
  if (of_sizes != nullptr) *of_sizes = nullptr;
  return guard(message, [&] {
    require(of_sizes, "of_sizes");
    *of_sizes = new scoremod_attention{at(attention, sizes), nullptr};
  });
}

void scoremod_attention_destroy(scoremod_attention* attention) { delete attention; }

scoremod_status scoremod_attention_problem(const scoremod_attention* attention, char** problem_json, char** message) {
  if (problem_json != nullptr) *problem_json = nullptr;
  return guard(message, [&] {
    require(attention, "attention");
    require(problem_json, "problem_json");
    give(scoremod::to_json((attention->open ? attention->open->problem() : attention->attention->problem())),
         problem_json);
  });
}

scoremod_status scoremod_attention_backend(const scoremod_attention* attention, const char** backend, char** message) {
  return guard(message, [&] {
    require(attention, "attention");
    require(backend, "backend");
    *backend = of_fixed_sizes(attention)->backend().c_str();
  });
}

scoremod_status scoremod_attention_backward_backend(const scoremod_attention* attention, const char** backend,
                                                    char** message) {
  return guard(message, [&] {
    require(attention, "attention");
    require(backend, "backend");
    std::string reasons;
    for (const auto& reason : of_fixed_sizes(attention)->backward_reasons()) reasons += "; " + to_string(reason);
    if (!reasons.empty()) scoremod::fail_unsupported("no backend runs the backward of this problem", reasons);
    *backend = of_fixed_sizes(attention)->backward_backend().c_str();
  });
}

scoremod_status scoremod_attention_forward_workspace_bytes(const scoremod_attention* attention, size_t* bytes,
                                                           char** message) {
  return guard(message, [&] {
    require(attention, "attention");
    require(bytes, "bytes");
    *bytes = of_fixed_sizes(attention)->forward_workspace_bytes();
  });
}

scoremod_status scoremod_attention_backward_workspace_bytes(const scoremod_attention* attention, size_t* bytes,
                                                            char** message) {
  return guard(message, [&] {
    require(attention, "attention");
    require(bytes, "bytes");
    *bytes = of_fixed_sizes(attention)->backward_workspace_bytes();
  });
}

scoremod_status scoremod_attention_forward(const scoremod_attention* attention, const scoremod_forward_args* args,
                                           char** message) {
  return guard(message, [&] { forward(*of_fixed_sizes(attention), args); });
}

scoremod_status scoremod_attention_backward(const scoremod_attention* attention, const scoremod_backward_args* args,
                                            char** message) {
  return guard(message, [&] { backward(*of_fixed_sizes(attention), args); });
}

scoremod_status scoremod_attention_call(const scoremod_prepared_call* call, char** message) {
  return guard(message, [&] {
    const scoremod_prepared_call prepared = convert(call);
    if ((prepared.forward == nullptr) == (prepared.backward == nullptr))
      scoremod::fail_argument("call: expected forward or backward, found ",
                              prepared.forward == nullptr ? "neither" : "both", "; set one of them");
    for (std::size_t i = 0; i < prepared.count; ++i) {
      require(prepared.buffers[i], "call.buffers[]");
      *prepared.buffers[i] = {prepared.addresses[i], prepared.bytes[i]};
    }
    if (prepared.sizes == nullptr) return run(*of_fixed_sizes(prepared.attention), prepared);
    run(*at(prepared.attention, prepared.sizes), prepared);
  });
}

scoremod_status scoremod_support(const char* problem_json, const scoremod_compile_options* options, char** answers_json,
                                 char** message) {
  if (answers_json != nullptr) *answers_json = nullptr;
  return guard(message, [&] {
    require(problem_json, "problem_json");
    require(answers_json, "answers_json");
    const scoremod::AttentionProblem problem = scoremod::parse_problem(problem_json);
    const auto [compile, level, device] = scoremod::c_api::convert_query(options);
    auto answers = nlohmann::ordered_json::array();
    for (const scoremod::Support& answer : device ? scoremod::support_elsewhere(problem, *device, compile, level)
                                                  : scoremod::support(problem, compile, level)) {
      nlohmann::ordered_json object{{"backend", answer.backend}, {"supported", answer.supported}};
      scoremod::explaining::add_reasons(answer.reasons, object);
      object["notes"] = answer.notes;
      object["memory"] = to_string(answer.memory);
      object["forward_supported"] = answer.forward_supported;
      answers.push_back(std::move(object));
    }
    give(answers.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), answers_json);
  });
}

scoremod_status scoremod_explain(const char* problem_json, const scoremod_compile_options* options,
                                 char** explanation_json, char** message) {
  if (explanation_json != nullptr) *explanation_json = nullptr;
  return guard(message, [&] {
    require(problem_json, "problem_json");
    require(explanation_json, "explanation_json");
    scoremod::c_api::Query query = scoremod::c_api::convert_query(options);
    scoremod::ExplainOptions explain_options;
    explain_options.compile = std::move(query.compile);
    explain_options.device_properties = std::move(query.device_properties);
    const scoremod::AttentionProblem problem = scoremod::parse_problem(problem_json);
    give(to_json(scoremod::explain(problem, explain_options)), explanation_json);
  });
}

}  // extern "C"
