#include "c_structs/drawn_problem.hpp"

#include <nlohmann/json.hpp>

namespace scoremod::fuzz {
namespace {

using Json = nlohmann::ordered_json;

void draw_program(Choices& choices, Json& problem) {
  static constexpr std::initializer_list<const char*> kPrograms = {
      "value = score",
      "value = score\nkeep = q_idx >= kv_idx",
      "operand gain: f32 []\nvalue = score * gain",
      "operand slopes: f32 [h]\nvalue = score + slopes * f32(q_idx - kv_idx)",
      "operand ids: i32 [b, kv_idx]\nvalue = tanh(score)\nkeep = ids == 1 | kv_idx < 2",
      "operand kept: bool [b, kv_idx]\nvalue = score\nkeep = kept",
      "table bias: f32 rank 2\nvalue = score + bias[h, q_idx % 3 + kv_idx % 3]",
  };
  problem["program"] = choices.among(kPrograms);
  if (problem["program"].get<std::string>().starts_with("table"))
    problem["operands"] = {{{"name", "bias"}, {"shape", {problem["heads_q"], 5}}}};
}

void draw_kind(Choices& choices, Json& problem) {
  const auto kind = choices.byte() % 6;
  if (kind == 1 || kind == 2) problem["lengths"] = {{"q", kind == 2}, {"kv", true}};
  if (kind == 3 || kind == 4) problem["tokens_q"] = choices.among({9, 1, 20});
  if (kind == 3) problem["tokens_kv"] = choices.among({11, 2, 30});
  if (kind < 4 || kind > 5) return;
  problem["lengths"] = {{"kv", true}};
  problem["paged"] = {{"block_size", choices.among({4, 1, 16})}, {"blocks", choices.among({8, 3, 90})}};
  problem["paged"]["blocks_per_sequence"] = choices.among({10, 40, 1});
}

void draw_options(Choices& choices, Json& problem) {
  for (const char* name : {"backward", "stats", "max_logit", "index_offsets", "deterministic"}) {
    if (choices.byte() % 3 == 1) problem[name] = true;
  }
  problem["sink"] = choices.among({"none", "off_by_one", "learned"});
  if (choices.rarely()) problem["dropout"] = 0.25;
  if (problem.contains("dropout") && choices.rarely()) problem["dropout_keys"] = true;
  problem["layout"] = choices.among({"BSHD", "BHSD", "SBHD"});
  if (problem.contains("tokens_q")) problem.erase("layout");
}

void draw_dtypes(Choices& choices, Json& problem) {
  const auto dtype = choices.byte() % 8;
  problem["dtype"] = dtype == 1 ? "f16" : dtype == 2 ? "bf16" : dtype == 3 ? "e4m3" : "f32";
  if (dtype == 3) problem["dtype_o"] = choices.among({"bf16", "e4m3"});
  if (dtype == 3 && choices.rarely()) problem["amax_o"] = problem["amax_gradients"] = true;
  if (dtype == 4) problem["dtype_kv"] = "e5m2";
}

Sizes sizes_of(const Json& problem) {
  Sizes sizes;
  sizes.batch = problem["batch"];
  sizes.heads_q = problem["heads_q"];
  sizes.heads_kv = problem["heads_kv"];
  sizes.seq_q = problem["seq_q"];
  sizes.seq_kv = problem["seq_kv"];
  sizes.tokens_q = problem.value("tokens_q", 0);
  sizes.tokens_kv = problem.value("tokens_kv", 0);
  if (!problem.contains("paged")) return sizes;
  sizes.blocks = problem["paged"]["blocks"];
  sizes.blocks_per_sequence = problem["paged"]["blocks_per_sequence"];
  return sizes;
}

void open_sizes(Choices& choices, Json& problem) {
  const std::uint8_t opened = choices.byte();
  const char* const names[] = {"batch", "heads_q", "seq_q", "seq_kv", "tokens_q", "tokens_kv"};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if ((opened >> i & 1) != 0 && problem.contains(names[i])) problem[names[i]] = nullptr;
  }
  if (problem["heads_q"].is_null()) problem["heads_kv"] = nullptr;
}

}  // namespace

DrawnProblem draw_problem(Choices& choices) {
  Json problem;
  const int heads_kv = choices.among({2, 1, 3});
  problem["batch"] = choices.among({2, 1, 3});
  problem["heads_q"] = heads_kv * choices.among({2, 1});
  problem["heads_kv"] = heads_kv;
  problem["seq_q"] = choices.among({5, 1, 17, 40});
  problem["seq_kv"] = choices.among({7, 1, 33, 40});
  problem["dim_qk"] = choices.among({4, 8, 3, 16});
  problem["dim_v"] = choices.among({4, 8, 3, 16});
  draw_dtypes(choices, problem);
  draw_program(choices, problem);
  draw_kind(choices, problem);
  draw_options(choices, problem);
  const Sizes sizes = sizes_of(problem);
  if (choices.byte() % 3 == 1) open_sizes(choices, problem);
  return {problem.dump(), sizes};
}

}  // namespace scoremod::fuzz
