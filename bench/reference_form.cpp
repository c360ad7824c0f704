#include "reference_form.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"
#include "scoremod/tensors.hpp"

namespace scoremod::bench {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const BenchCase& bench_case, const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, "case '" + bench_case.name + "': reference" + text);
}

template <class T>
void read(const BenchCase& bench_case, const std::string& key, const Json& value, T& to) {
  try {
    value.get_to(to);
  } catch (const Json::exception& error) {
    fail(bench_case, "." + key + ": " + error.what());
  }
}

template <class T>
void read(const BenchCase& bench_case, const std::string& key, const Json& value, std::optional<T>& to) {
  read(bench_case, key, value, to.emplace());
}

void read_field(const BenchCase& bench_case, const std::string& key, const Json& value, ReferenceForm& form) {
  const auto into = [&](auto& to) { read(bench_case, key, value, to); };
  if (key == "causal") return into(form.causal);
  if (key == "window") return into(form.window);
  if (key == "soft_cap") return into(form.soft_cap);
  if (key == "relative_bias") return into(form.relative_bias);
  if (key == "alibi") return into(form.alibi);
  if (key == "bias") return into(form.bias);
  if (key == "bias_attribute") return into(form.bias_attribute);
  if (key == "prefix") return into(form.prefix);
  if (key == "query_documents") return into(form.query_documents);
  if (key == "key_documents") return into(form.key_documents);
  if (key == "lengths") return into(form.lengths);
  fail(bench_case, "." + key + ": this field has no meaning; bench/reference_form.hpp has those that do");
}

/// The form's operands must be the problem's, of the dtype and the axes that the graph takes them with.
void check_operand(const BenchCase& bench_case, const std::string& name, const std::string& dimensions, bool integer) {
  if (name.empty()) return;
  for (const TensorInfo& tensor : tensors_of(bench_case.problem)) {
    if (tensor.name != name) continue;
    if (tensor.dimensions != dimensions || (tensor.dtype == DType::kI32) != integer) {
      fail(bench_case, ": expected operand '" + name + "' to vary along [" + dimensions + "], found [" +
                           tensor.dimensions + "], " + to_string(tensor.dtype));
    }
    return;
  }
  fail(bench_case, ": '" + name + "' is no operand of the problem");
}

void check(const BenchCase& bench_case, const ReferenceForm& form) {
  check_operand(bench_case, form.alibi, "h", false);
  check_operand(bench_case, form.bias, "h, q_idx, kv_idx", false);
  check_operand(bench_case, form.query_documents, "b, q_idx", true);
  check_operand(bench_case, form.key_documents, "b, kv_idx", true);
  check_operand(bench_case, form.lengths, "b", true);
  if (form.query_documents.empty() != form.key_documents.empty()) fail(bench_case, ": expected ids of both sides");
  if (form.window && !(form.causal && form.only_flags())) {
    fail(bench_case, ".window: expected it beside causal alone");
  }
}

bool computes_operand_gradients(const BenchCase& bench_case, const ReferenceForm& form) {
  if (bench_case.direction == Direction::kForward || !bench_case.operand_gradients) return true;
  return std::ranges::all_of(tensors_of(bench_case.problem), [&](const TensorInfo& tensor) {
    const bool operand = tensor.name != "q" && tensor.name != "k" && tensor.name != "v" && tensor.has_gradient;
    return !operand || (form.bias_attribute && tensor.name == form.bias);
  });
}

}  // namespace

bool ReferenceForm::only_flags() const {
  const bool bias_modifier = !bias.empty() && !bias_attribute;
  return !soft_cap && !relative_bias && alibi.empty() && !bias_modifier && !prefix && query_documents.empty() &&
         lengths.empty();
}

std::optional<ReferenceForm> reference_form(const BenchCase& bench_case) {
  const Json json = Json::parse(bench_case.reference);
  if (json.is_null()) return std::nullopt;
  if (!json.is_object()) fail(bench_case, ": expected an object, found " + json.dump());
  ReferenceForm form;
  for (const auto& [key, value] : json.items()) read_field(bench_case, key, value, form);
  check(bench_case, form);
  if (!computes_operand_gradients(bench_case, form)) return std::nullopt;
  return form;
}

}  // namespace scoremod::bench
