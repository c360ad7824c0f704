#include "support/option_cases.hpp"

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <sstream>

#include "check/zoo_cases.hpp"

namespace scoremod::test {
namespace {

std::vector<Option> single_options() {
  return {{"lengths",
           [](AttentionProblem& p) {
             p.lengths = {true, true};
           }},
          {"sink off_by_one", [](AttentionProblem& p) { p.sink = Sink::kOffByOne; }},
          {"sink learned", [](AttentionProblem& p) { p.sink = Sink::kLearned; }},
          {"dropout", [](AttentionProblem& p) { p.dropout = 0.25F; }},
          {"dropout_keys",
           [](AttentionProblem& p) {
             p.dropout = 0.25F;
             p.dropout_keys = true;
           }},
          {"given_deltas", [](AttentionProblem& p) { p.given_deltas = true; }},
          {"max_logit", [](AttentionProblem& p) { p.max_logit = true; }},
          {"index_offsets", [](AttentionProblem& p) { p.index_offsets = true; }},
          {"deterministic", [](AttentionProblem& p) { p.deterministic = true; }},
          {"ragged",
           [](AttentionProblem& p) {
             p.tokens_q = 61;
             p.tokens_kv = 101;
             p.q.layout = p.k.layout = p.v.layout = p.o.layout = Layout::kTHD;
           }},
          {"paged",
           [](AttentionProblem& p) {
             p.backward = false;
             p.lengths.kv = true;
             p.paged = PagedKeys{16, 13, 6};
           }},
          {"gradient layouts",
           [](AttentionProblem& p) {
             p.d_o = p.dk = TensorLayout{Layout::kBHSD, {}};
             p.dq = p.dv = TensorLayout{Layout::kSBHD, {}};
           }},
          {"dtype_o", [](AttentionProblem& p) { p.dtype_o = DType::kF32; }},
          {"dtype_kv",
           [](AttentionProblem& p) {
             p.backward = false;
             p.dtype_kv = DType::kE4M3;
           }},
          {"float8", [](AttentionProblem& p) { p.dtype = DType::kE4M3; }},
          // The extents fit dense, varlen and paged tensors alike.
          {"block_scales", [](AttentionProblem& p) {
             p.dtype = DType::kE4M3;
             p.operands.push_back({"descale_q", DType::kF32, {1, p.heads_q, 1, 1}, {}, false});
             for (const char* name : {"descale_k", "descale_v"})
               p.operands.push_back({name, DType::kF32, {1, p.heads_kv, 1, 16}, {}, false});
           }}};
}

/// Whether two options may be combined. There is one sink and one way to pass dropout's keys. Keys are varlen or paged;
/// paged and FP8 ones have no gradients, and varlen tensors have one layout. FP8 queries have FP8 keys, with block
/// scales or without.
bool are_compatible(const std::string& first, const std::string& second) {
  for (const char* kind : {"sink", "dropout"}) {
    if (first.starts_with(kind) && second.starts_with(kind)) return false;
  }
  if (second == "dtype_kv") return first != "given_deltas" && first != "deterministic" && first != "gradient layouts";
  if (first == "dtype_kv") return second != "float8" && second != "block_scales";
  if (first == "float8") return second != "block_scales";
  if (first == "ragged") return second != "paged" && second != "gradient layouts";
  if (second == "paged") return first != "given_deltas";
  return first != "paged" || second != "gradient layouts";
}

std::string number(double ratio) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << ratio;
  return out.str();
}

/// The largest error over its tolerance of a direction's outputs; NaN where one is wrong in kind.
double worst(const CheckReport& report, bool forward) {
  double largest = 0;
  for (const OutputCheck& output : report.outputs) {
    const bool of_forward =
        output.name == "o" || output.name == "lse" || output.name == "max_logit" || output.name == "amax_o";
    if (of_forward == forward) largest = std::max(largest, output.badness());
  }
  return largest;
}

}  // namespace

std::vector<Option> options() {
  const std::vector<Option> single = single_options();
  std::vector<Option> all{{"none", [](AttentionProblem&) {}}};
  all.insert(all.end(), single.begin(), single.end());
  for (std::size_t i = 0; i < single.size(); ++i) {
    for (std::size_t j = i + 1; j < single.size(); ++j) {
      if (!are_compatible(single[i].name, single[j].name)) continue;
      all.push_back({single[i].name + " + " + single[j].name, [first = single[i].set, second = single[j].set](auto& p) {
                       first(p);
                       second(p);
                     }});
    }
  }
  return all;
}

std::vector<Modifier> modifiers() {
  return {{"none", {}},
          {"additive", {"relative_bias", "causal"}},
          {"soft cap", {"soft_cap"}},
          {"per-head scale", {"head_temperature"}},
          {"learned operand", {"full_bias"}},
          {"documents", {"documents"}}};
}

checking::CheckCase option_case(const Option& option, const Modifier& modifier) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 40;
  problem.seq_kv = 72;
  problem.dim_qk = problem.dim_v = 16;
  problem.backward = problem.stats = true;
  option.set(problem);
  checking::CheckCase made =
      checking::zoo_case(modifier.names, problem, is_float8(problem.dtype) ? problem.dtype : DType::kBF16);
  // Sequences that offsets or tables place are whole.
  if (problem.index_offsets)
    made.call.offsets = {0, 1, problem.tokens_q ? 0 : 4, problem.tokens_kv || problem.paged ? 0 : 8};
  made.call.dropout_seed = 12345;
  made.seed = 7;
  return made;
}

std::string fingerprint(const checking::CheckCase& made) {
  const auto& [batch, head, query, key] = made.call.offsets;
  std::ostringstream text;
  text << to_json(made.problem) << batch << ',' << head << ',' << query << ',' << key << ',' << made.seed;
  // FNV-1a.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text.str()) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::ostringstream hex;
  hex << std::hex << std::setw(16) << std::setfill('0') << hash;
  return hex.str();
}

std::string text_of(const checking::CheckCase& made, const CheckReport& report) {
  return number(worst(report, true)) + (made.problem.backward ? " / " + number(worst(report, false)) : "");
}

std::string zero_output(const CheckReport& report) {
  for (const OutputCheck& output : report.outputs) {
    if (!(output.l2.scale > 0)) return output.name;
  }
  return {};
}

}  // namespace scoremod::test
