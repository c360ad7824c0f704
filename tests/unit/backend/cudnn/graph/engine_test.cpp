#include "backend/cudnn/graph/engine.hpp"

#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <iostream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "backend/cuda/device/load_stub_driver.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/plan_key.hpp"

namespace scoremod::backend::cudnn {
namespace {

TEST(OutcomeOfBuild, TakesTheFrontendsExceptionsAloneForARefusal) {
  const auto of = [](auto thrown) { return outcome_of_build([&]() -> BuildOutcome { throw thrown; }); };
  EXPECT_EQ(of(std::runtime_error("no such node")).status, BuildStatus::kRefused);
  EXPECT_EQ(of(std::runtime_error("no such node")).text, "no such node");
  EXPECT_EQ(of(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))).status,
            BuildStatus::kFailed);
  EXPECT_THROW(of(std::bad_alloc()), std::bad_alloc);
  EXPECT_THROW(of(std::logic_error("a mistake of ours")), std::logic_error);
  EXPECT_THROW(of(Error(ErrorCode::kEnvironment, "no driver")), Error);
}

DeviceProperties device_of(const std::string& name) {
  std::ifstream file(SCOREMOD_DEVICES_FOLDER "/" + name + ".json");
  std::ostringstream text;
  text << file.rdbuf();
  return DeviceProperties::parse(text.str());
}

DeviceProperties b200() { return device_of("b200"); }

/// A forward whose scores stay as they are.
AttentionGraph forward_of(std::int64_t length, std::string engine = {}) {
  constexpr std::int64_t kHeads = 4, kDim = 128;
  AttentionGraph graph;
  graph.q = graph.k = graph.v = graph.o = {{2, kHeads, length, kDim}, {length * kHeads * kDim, kDim, kHeads * kDim, 1}};
  graph.modifier.value.kind = Ref::Kind::kScore;
  graph.engine = std::move(engine);
  return graph;
}

/// Whether a B200's plans take the engine that they are told to take. Ends the process: the stub driver that is loaded
/// stays for all of it.
[[noreturn]] void build_by_engines() {
  cuda::load_stub_driver();
  const auto engine_of = [](const BuildOutcome& outcome) {
    return outcome.plan ? outcome.plan->engine() : outcome.text;
  };
  const std::string small = engine_of(build_plan(forward_of(256), b200()));
  const std::string large = engine_of(build_plan(forward_of(4096), b200()));
  const std::string wanted = engine_of(build_plan(forward_of(256, large), b200()));
  const BuildOutcome unknown = build_plan(forward_of(256, "eng99999"), b200());
  const BuildOutcome no_name = build_plan(forward_of(256, "the best one"), b200());
  std::cerr << small << "; " << large << "; " << wanted << "; " << unknown.text << "; " << no_name.text << "\n";
  const bool right = small != large && wanted == large && unknown.status != BuildStatus::kBuilt &&
                     no_name.status == BuildStatus::kFailed;
  std::_Exit(right ? 0 : 1);
}

/// Whether a B200's plan names engines behind its own, which are built by their names. Ends the process.
[[noreturn]] void build_next_engines() {
  cuda::load_stub_driver();
  const BuildOutcome first = build_plan(forward_of(515), b200());
  if (!first.plan || first.plan->next_engines().empty()) std::_Exit(2);
  for (const std::string& name : first.plan->next_engines()) {
    const BuildOutcome next = build_plan(forward_of(515, name), b200());
    if (!next.plan || next.plan->engine() != name || name == first.plan->engine()) std::_Exit(3);
    if (!next.plan->next_engines().empty()) std::_Exit(4);
    std::cerr << name << "\n";
  }
  std::_Exit(0);
}

/// Builds plans of varlen sequences and of pages, and tells those that are none. Ends the process.
[[noreturn]] void build_placed(const char* device) {
  cuda::load_stub_driver();
  constexpr std::int64_t kHeads = 4, kDim = 128, kPageRows = 16;
  AttentionGraph varlen = forward_of(512), pages = forward_of(512);
  varlen.places = {true, true, 0, 0};
  pages.places = {true, false, 32, 512};
  pages.k = pages.v = {{64, kHeads, kPageRows, kDim}, {kPageRows * kHeads * kDim, kDim, kHeads * kDim, 1}};
  AttentionGraph backward = varlen;
  backward.direction = Direction::kBackward;
  backward.gradients = {backward.o, backward.q, backward.k, backward.v};
  bool built = true;
  for (const AttentionGraph& graph : {varlen, pages, backward}) {
    const BuildOutcome outcome = build_plan(graph, device_of(device));
    std::cerr << plan_label(graph) << ": " << (outcome.plan ? outcome.plan->engine() : outcome.text) << "\n";
    built &= outcome.status == BuildStatus::kBuilt;
  }
  std::_Exit(built ? 0 : 1);
}

class PlacedPlans : public testing::TestWithParam<const char*> {};

TEST_P(PlacedPlans, AreBuilt) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has a CUDA driver";
  if (!library().available) GTEST_SKIP() << library().reason;
  EXPECT_EXIT(build_placed(GetParam()), testing::ExitedWithCode(0), "eng[0-9]+");
}
INSTANTIATE_TEST_SUITE_P(Devices, PlacedPlans, testing::Values("h200", "b200"));

TEST(BuildPlan, NamesTheEnginesBehindItsOwn) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has a CUDA driver";
  if (!library().available) GTEST_SKIP() << library().reason;
  EXPECT_EXIT(build_next_engines(), testing::ExitedWithCode(0), "eng[0-9]+");
}

/// A trial has few keys, and is of the engine that cuDNN chose for many.
TEST(BuildPlan, TakesTheEngineThatTheGraphNames) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "this machine has a CUDA driver";
  if (!library().available) GTEST_SKIP() << library().reason;
  EXPECT_EXIT(build_by_engines(), testing::ExitedWithCode(0), "eng[0-9]+");
}

}  // namespace
}  // namespace scoremod::backend::cudnn
