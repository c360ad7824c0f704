// Compiles the attention kernels of a list of problems for sm_90 and sm_80, without a device, and
// writes each candidate's images to FOLDER. compare.py tells whether two versions of the library made the same SASS.

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "base/bytes.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace {

using namespace scoremod;  // NOLINT(google-build-using-namespace): a program of one file

struct Case {
  const char* name;
  AttentionProblem problem;
};

AttentionProblem problem_of(const char* program, std::int64_t dim_qk = 128, std::int64_t dim_v = 128,
                            DType dtype = DType::kBF16) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 8;
  problem.heads_kv = 4;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = dim_qk;
  problem.dim_v = dim_v;
  problem.dtype = dtype;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  for (const OperandDecl& decl : problem.program.operands()) {
    problem.operands.push_back(problem::default_spec(problem, decl));
    if (decl.is_table()) problem.operands.back().shape = {33};
  }
  return problem;
}

template <class Change>
AttentionProblem changed(AttentionProblem problem, const Change& change) {
  change(problem);
  return problem;
}

constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";
constexpr const char* kPlain = "value = score";

std::vector<Case> cases() {
  const auto decode = [](AttentionProblem& p) {
    p.seq_q = 1;
    p.backward = false;
  };
  return {
      {"plain_d64_f16", problem_of(kPlain, 64, 64, DType::kF16)},
      {"causal_d128", problem_of(kCausal)},
      {"plain_d256", problem_of(kPlain, 256, 256)},
      {"causal_d192_128", problem_of(kCausal, 192, 128)},
      {"softcap_d72_80", problem_of("value = tanh(score * 0.1) * 10.0", 72, 80)},
      {"float32", problem_of(kCausal, 64, 64, DType::kF32)},
      {"slopes", problem_of("operand slope: f32 [h]\nvalue = score + slope * f32(kv_idx - q_idx)")},
      {"bias", problem_of("operand bias: f32 [b, h, q_idx, kv_idx]\nvalue = score + bias")},
      {"table", problem_of("table t: f32 rank 1\nvalue = score + t[kv_idx - q_idx + 16]")},
      {"documents", problem_of("operand ids: i32 [b, q_idx]\noperand keys: i32 [b, kv_idx]\nvalue = score\n"
                               "keep = ids == keys")},
      {"global", problem_of("value = score\nkeep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512")},
      {"varlen", changed(problem_of(kCausal),
                         [](AttentionProblem& p) {
                           p.tokens_q = 5000;
                           p.tokens_kv = 6000;
                           p.q = p.k = p.v = p.o = {Layout::kTHD, {}};
                         })},
      {"decode_paged", changed(problem_of(kPlain),
                               [&](AttentionProblem& p) {
                                 decode(p);
                                 p.lengths.kv = true;
                                 p.paged = PagedKeys{16, 2000, 300};
                               })},
      {"decode_d64", changed(problem_of(kCausal, 64, 64), decode)},
      {"dropout_sink", changed(problem_of(kCausal),
                               [](AttentionProblem& p) {
                                 p.dropout = 0.1f;
                                 p.sink = Sink::kLearned;
                                 p.max_logit = true;
                               })},
      {"decode_large_pages", changed(problem_of(kPlain),
                                     [&](AttentionProblem& p) {
                                       decode(p);
                                       p.lengths.kv = true;
                                       p.paged = PagedKeys{64, 600, 70};
                                     })},
      {"decode_float8_keys", changed(problem_of(kPlain),
                                     [&](AttentionProblem& p) {
                                       decode(p);
                                       p.dtype_kv = DType::kE4M3;
                                     })},
      {"decode_d576_512", changed(problem_of(kPlain, 576, 512), decode)},
      {"decode_varlen", changed(problem_of(kCausal),
                                [&](AttentionProblem& p) {
                                  decode(p);
                                  p.tokens_kv = 6000;
                                  p.k = p.v = {Layout::kTHD, {}};
                                })},
      {"plain_d512", changed(problem_of(kPlain, 512, 512), [](AttentionProblem& p) { p.backward = false; })},
      {"float8", changed(problem_of(kCausal, 128, 128, DType::kE4M3),
                         [](AttentionProblem& p) {
                           p.backward = false;
                           p.dtype_o = DType::kBF16;
                         })},
      {"score_mask", problem_of("value = score\nkeep = score > -2.0 & kv_idx <= q_idx", 64, 64)},
      {"given_deltas",
       changed(problem_of(kCausal), [](AttentionProblem& p) { p.given_deltas = p.index_offsets = true; })},
      {"table_of_products", problem_of("table t: f32 rank 1\nvalue = score + t[(kv_idx * q_idx) % 33]", 64, 64)},
      {"shared_bias", problem_of("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias", 64, 64)},
  };
}

backend::Target target_of(int compute_capability) {
  backend::Target target;
  target.device.compute_capability = compute_capability;
  target.device.multiprocessors = 132;
  target.device.shared_memory_per_block = compute_capability == 90 ? 232448 : 166912;
  target.present = false;
  return target;
}

void write(const std::filesystem::path& file, const std::vector<std::byte>& bytes) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Builds each candidate of a task once, in a file that is named after its label.
void write_task(const std::filesystem::path& folder, const backend::Backend& engine,
                const compiler::CompiledProblem& compiled, const backend::Task& task, const backend::Target& target,
                const std::string& name) {
  std::vector<UnsupportedReason> reasons;
  std::set<Bytes> seen;
  for (const backend::Candidate& candidate : engine.candidates(compiled, task, target, reasons)) {
    if (!seen.insert(candidate.plan_key).second) continue;
    const backend::BuildResult built = candidate.recipe->build(target);
    std::string file = concat(name, " ", candidate.label, " ", seen.size());
    for (char& c : file)
      if (c == ' ' || c == ',') c = '_';
    std::printf("%s: %s\n", file.c_str(), built.artifact ? "built" : built.refusal.c_str());
    std::fflush(stdout);
    if (built.artifact) write(folder / (file + ".cbor"), built.artifact->serialize());
  }
}

void write_case(const std::filesystem::path& folder, const Case& one, int compute_capability) {
  const compiler::CompiledProblem compiled = compiler::compile(one.problem);
  const backend::Target target = target_of(compute_capability);
  const std::string name = concat(one.name, "_sm", compute_capability);
  write_task(folder, backend::kernels_backend(), compiled, {backend::Direction::kForward, true, {}}, target, name);
  if (!one.problem.backward) return;
  const backend::Direction backward = backend::Direction::kBackward;
  write_task(folder, backend::kernels_backend(), compiled, {backward, true, {}}, target, name);
  const auto learned = problem::operands_with_gradient(one.problem);
  if (learned.empty()) return;
  write_task(folder, backend::kernels_backend(), compiled, {backward, true, learned}, target, name + "_gradients");
  write_task(folder, backend::operand_kernels_backend(), compiled, {backward, false, learned}, target, name + "_apart");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: scoremod_kernel_images FOLDER [CASE...]\n");
    return 2;
  }
  try {
    std::filesystem::create_directories(argv[1]);
    const std::set<std::string_view> asked(argv + 2, argv + argc);
    for (const Case& one : cases()) {
      if (!asked.empty() && !asked.contains(one.name)) continue;
      for (const int compute_capability : {90, 80}) write_case(argv[1], one, compute_capability);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scoremod_kernel_images: %s\n", error.what());
    return 1;
  }
  return 0;
}
