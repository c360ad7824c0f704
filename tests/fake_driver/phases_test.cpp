// The work of each phase of serving, by counters: asking, asking again, making, calling, calling with another scale,
// and calling at other sizes. Nothing is compiled, built or loaded that an earlier phase has.
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "scoremod/attention_cache.hpp"
#include "scoremod/cache.hpp"
#include "scoremod/explain.hpp"
#include "scoremod/open_attention.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"

namespace scoremod {
namespace {

namespace fake_cuda = test::fake_cuda;

/// The work of a phase.
struct Work {
  std::uint64_t compiled = 0;  ///< structures
  std::uint64_t planned = 0;   ///< directions
  std::uint64_t built = 0;     ///< by NVRTC
  std::size_t loaded = 0;      ///< modules
  bool launched = false;
  bool operator==(const Work&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Work& work) {
  return out << work.compiled << " compiled, " << work.planned << " planned, " << work.built << " built, "
             << work.loaded << " loaded, " << (work.launched ? "" : "not ") << "launched";
}

constexpr Work kNothing{}, kCall{0, 0, 0, 0, true}, kPlan{0, 1, 0, 0, false};

/// A problem with open sizes, and sizes of one class.
struct Case {
  const char* name;
  AttentionProblem open;
  std::vector<Sizes> sizes;
};

AttentionProblem forward_of(const char* program) {
  AttentionProblem problem = test::small_problem(program, DType::kBF16, 64);
  problem.backward = problem.stats = false;
  return problem;
}

constexpr int kSizes = 6;
/// From the third size on, a plan is made like the last one.
constexpr std::size_t kKnown = 2;

template <class SizesAt>
Case case_of(const char* name, AttentionProblem open, const SizesAt& sizes_at) {
  Case made{name, std::move(open), {}};
  for (int i = 0; i < kSizes; ++i) made.sizes.push_back(sizes_at(i));
  return made;
}

Case dense() {
  AttentionProblem open = forward_of("value = score\nkeep = kv_idx <= q_idx");
  open.batch = open.seq_q = open.seq_kv = kOpenSize;
  return case_of("Dense", open, [](int i) {
    Sizes sizes;
    sizes.batch = 2 + i;
    sizes.seq_q = 500 + i;
    sizes.seq_kv = 510 + 3 * i;
    return sizes;
  });
}

/// Buckets of tokens (THD), whose sequences and longest lengths change with the batch.
Case token_buckets() {
  AttentionProblem open = forward_of("value = score");
  open.batch = open.seq_q = open.seq_kv = kOpenSize;
  open.tokens_q = open.tokens_kv = kOpenSize;
  for (TensorLayout* tensor : {&open.q, &open.k, &open.v, &open.o}) *tensor = {Layout::kTHD, {}};
  return case_of("TokenBuckets", open, [](int i) {
    Sizes sizes;
    sizes.batch = 3 + i;
    sizes.seq_q = sizes.seq_kv = 400 + i;
    sizes.tokens_q = sizes.tokens_kv = 1024 + 64 * i;
    return sizes;
  });
}

Case pages() {
  constexpr std::int64_t kPage = 16;
  AttentionProblem open = forward_of("value = score");
  open.lengths.kv = true;
  open.seq_q = 1;
  open.batch = open.seq_kv = kOpenSize;
  open.paged = PagedKeys{kPage, kOpenSize, kOpenSize};
  return case_of("Pages", open, [](int i) {
    Sizes sizes;
    sizes.batch = 4 + i % 2;
    sizes.blocks_per_sequence = 128 + i;
    sizes.seq_kv = sizes.blocks_per_sequence * kPage;
    sizes.blocks = sizes.batch * sizes.blocks_per_sequence + std::int64_t{7} * i;
    return sizes;
  });
}

Case bias() {
  AttentionProblem open = forward_of("operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + bias");
  open.seq_q = open.seq_kv = kOpenSize;
  open.operands = {{"bias", DType::kF32, {open.heads_q, kOpenSize, kOpenSize}, {}, false}};
  return case_of("Bias", open, [](int i) {
    Sizes sizes;
    sizes.seq_q = 256 + i;
    sizes.seq_kv = 512 + i;
    return sizes;
  });
}

std::vector<Case> cases() { return {dense(), token_buckets(), pages(), bias()}; }

class Phases : public test::OnFakeDevice {
 protected:
  static int device() { return test::fake_device("h200"); }
  static CompileOptions options() { return test::kernels_on(device()); }

  void SetUp() override {
    OnFakeDevice::SetUp();
    if (IsSkipped()) return;
    backend::cuda::cuda_memory().make_current(device());
    drop_plans();
  }

  template <class Phase>
  static Work work_of(const Phase& phase) {
    const CompileCounts compiled = compile_counts();
    const std::uint64_t built = cache_statistics().builds.count;
    const std::size_t modules = fake_cuda::live().modules;
    fake_cuda::take_launches();
    phase();
    const CompileCounts now = compile_counts();
    return {now.problems - compiled.problems, now.forwards + now.backwards - compiled.forwards - compiled.backwards,
            cache_statistics().builds.count - built, fake_cuda::live().modules - modules,
            !fake_cuda::take_launches().empty()};
  }
};

class PhasesOfSizes : public Phases, public ::testing::WithParamInterface<int> {};

TEST_P(PhasesOfSizes, DoWhatNoEarlierOneDid) {
  const Case of = cases()[static_cast<std::size_t>(GetParam())];
  const AttentionProblem first = problem_at(of.open, of.sizes.front());
  const auto ask = [&] { EXPECT_TRUE(support(first, options(), SupportLevel::kStatic).front().supported); };
  Work asked = work_of(ask);
  EXPECT_EQ(asked.compiled, 1u) << "query: " << asked;
  EXPECT_EQ(asked.built + asked.loaded, 0u) << "query: " << asked;
  const Work asked_again = work_of(ask);
  EXPECT_EQ(asked_again.compiled + asked_again.built + asked_again.loaded, 0u) << "requery: " << asked_again;

  const OpenAttention open = OpenAttention::compile(of.open, options());
  for (std::size_t i = 0; i < of.sizes.size(); ++i) {
    SCOPED_TRACE(std::string(of.name) + ", sizes " + std::to_string(i));
    std::shared_ptr<const Attention> attention;
    const Work made = work_of([&] { attention = open.at(of.sizes[i]); });
    if (i == 0) {
      EXPECT_GT(made.built, 0u) << made;
      EXPECT_GT(made.loaded, 0u) << made;
    }
    EXPECT_EQ(made.compiled, 0u) << made;
    if (i >= kKnown) {
      EXPECT_EQ(made, kPlan) << "reshape";
    }
    EXPECT_EQ(work_of([&] { open.at(of.sizes[i]); }), kNothing) << "known sizes";
    const test::DeviceCalls memory(problem_at(of.open, of.sizes[i]), device());
    ForwardArgs args = memory.forward_args();
    EXPECT_EQ(work_of([&] { attention->forward(args); }), kCall) << "exec";
    args.options.scale = 0.25F;
    EXPECT_EQ(work_of([&] { attention->forward(args); }), kCall) << "rescale";
  }
}

INSTANTIATE_TEST_SUITE_P(All, PhasesOfSizes, ::testing::Range(0, static_cast<int>(cases().size())),
                         [](const auto& tested) { return cases()[static_cast<std::size_t>(tested.param)].name; });

/// A negative control: the size is a number of the program, which kernels take as a parameter.
TEST_F(Phases, WithASizeInAProgramWouldBeSeen) {
  for (const int keys : {200, 210, 220}) {
    const std::string program = "value = score + f32(kv_idx * " + std::to_string(keys) + ")";
    AttentionProblem problem = forward_of(program.c_str());
    problem.seq_kv = keys;
    const Work work = work_of([&] { cached_attention(problem, options()); });
    EXPECT_EQ(work.compiled, 1u) << work;
    EXPECT_EQ(work.built > 0, keys == 200) << work;
  }
}

/// Another: the size is one of the kernels' text.
TEST_F(Phases, WithASizeInAKernelWouldBeSeen) {
  std::string value = "score";
  for (int keys = 200; keys < 203; ++keys) {
    value = "sin(" + value + ")";
    AttentionProblem problem = forward_of(("value = " + value).c_str());
    problem.seq_kv = keys;
    const Work work = work_of([&] { cached_attention(problem, options()); });
    EXPECT_EQ(work.compiled, 1u) << work;
    EXPECT_GT(work.built, 0u) << work;
    EXPECT_GT(work.loaded, 0u) << work;
  }
}

}  // namespace
}  // namespace scoremod
