#include "new_sizes.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "scoremod/c_api.h"
#include "scoremod/error.hpp"

namespace scoremod::bench {
namespace {

constexpr std::int64_t kFirstKeys = 1024;
constexpr int kSizes = 500;
/// An attention keeps 1,024 sizes. After so many more a new one takes the memory of an old one, and the heap grows no
/// more: a page fault takes as long as all else.
constexpr int kMoreSizes = 1100;

struct Case {
  const char* name;
  std::int64_t queries;
  const char* program;
};
constexpr std::array<Case, 3> kCases{{{"decode", 1, "value = score"},
                                      {"capped decode", 1, "value = 30.0 * tanh(score / 30.0)"},
                                      {"causal prefill", 128, "value = score; keep = kv_idx <= q_idx"}}};

using Attention = std::unique_ptr<scoremod_attention, decltype(&scoremod_attention_destroy)>;

void require(scoremod_status status, char* message) {
  if (status == SCOREMOD_OK) return;
  const std::string text = message == nullptr ? "" : message;
  scoremod_text_free(message);
  throw Error(status == SCOREMOD_INVALID_ARGUMENT ? ErrorCode::kInvalidArgument : ErrorCode::kEnvironment, text);
}

Attention open_attention(const Case& of, const std::string& memory) {
  const nlohmann::json problem{{"batch", nullptr},
                               {"heads_q", 32},
                               {"heads_kv", 8},
                               {"seq_q", nullptr},
                               {"seq_kv", nullptr},
                               {"dim_qk", 128},
                               {"dtype", memory == "cuda" ? "bf16" : "f32"},
                               {"program", of.program}};
  scoremod_compile_options options{};
  options.struct_size = sizeof options;
  options.memory = memory.c_str();
  scoremod_attention* made = nullptr;
  char* message = nullptr;
  const scoremod_status status = scoremod_attention_create(problem.dump().c_str(), &options, &made, &message);
  require(status, message);
  return {made, scoremod_attention_destroy};
}

double microseconds_at(const scoremod_attention* open, const scoremod_sizes& sizes) {
  scoremod_attention* made = nullptr;
  char* message = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  const scoremod_status status = scoremod_attention_at(open, &sizes, &made, &message);
  const auto end = std::chrono::steady_clock::now();
  require(status, message);
  scoremod_attention_destroy(made);
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

double median(std::vector<double> times) {
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

}  // namespace

nlohmann::ordered_json measure_new_sizes(const std::string& memory) {
  nlohmann::ordered_json found;
  for (const Case& each : kCases) {
    const Attention open = open_attention(each, memory);
    scoremod_sizes sizes{};
    sizes.struct_size = sizeof sizes;
    sizes.batch = 2;
    sizes.seq_q = each.queries;
    sizes.seq_kv = kFirstKeys;
    microseconds_at(open.get(), sizes);  // builds the kernels
    std::array<std::vector<double>, 2> times;
    for (std::vector<double>& of : times) {  // new sizes, then the same ones
      for (int i = 1; i <= kSizes; ++i) {
        sizes.seq_kv = kFirstKeys + i;
        of.push_back(microseconds_at(open.get(), sizes));
      }
    }
    const auto further = [&](int sizes_more) {
      std::vector<double> of;
      for (int i = 0; i < sizes_more; ++i) {
        ++sizes.seq_kv;
        of.push_back(microseconds_at(open.get(), sizes));
      }
      return of;
    };
    further(kMoreSizes);
    found[each.name] = {{"new", median(times[0])}, {"later new", median(further(kSizes))}, {"known", median(times[1])}};
  }
  return found;
}

}  // namespace scoremod::bench
