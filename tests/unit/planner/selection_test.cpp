#include "planner/selection.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "backend/left_out.hpp"
#include "support/refusal.hpp"

namespace scoremod::planner {
namespace {

/// Sets SCOREMOD_BACKENDS for the object's life.
class Variable {
 public:
  explicit Variable(const char* value) { setenv("SCOREMOD_BACKENDS", value, 1); }
  ~Variable() { unsetenv("SCOREMOD_BACKENDS"); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
};

std::vector<std::string> names(const CompileOptions& options) {
  std::vector<std::string> all;
  for (const backend::Backend* backend : select(options).backends) all.emplace_back(backend->name());
  return all;
}

CompileOptions list(std::vector<std::string> backends) {
  CompileOptions options;
  options.backends = std::move(backends);
  return options;
}

using Names = std::vector<std::string>;

TEST(Selection, WithoutAWishIsEveryBackendOfTheHostByPrediction) {
  const Selection selection = select({});
  EXPECT_EQ(names({}), (Names{"cpu", "reference"}));
  EXPECT_FALSE(selection.in_order);
  EXPECT_EQ(selection.memory, MemoryKind::kHost);
  EXPECT_EQ(selection.decided_by, "predicted time");
}

TEST(Selection, TakesTheCallersOrder) {
  EXPECT_EQ(names(list({"reference", "cpu"})), (Names{"reference", "cpu"}));
  EXPECT_TRUE(select(list({"reference", "cpu"})).in_order);
  EXPECT_EQ(select(list({"reference"})).decided_by, "the caller");
}

TEST(Selection, LeavesOutWhatHasAMinus) {
  EXPECT_EQ(names(list({"-cpu"})), (Names{"reference"}));
  EXPECT_FALSE(select(list({"-cpu"})).in_order);
  EXPECT_EQ(names(list({"cpu", "reference", "-cpu"})), (Names{"reference"}));
  EXPECT_TRUE(names(list({"-cpu", "-reference"})).empty());
}

TEST(Selection, TakesTheEnvironmentsWishWhereTheCallerHasNone) {
  const Variable variable(" reference , cpu");
  EXPECT_EQ(names({}), (Names{"reference", "cpu"}));
  EXPECT_EQ(select({}).decided_by, "SCOREMOD_BACKENDS");
  EXPECT_EQ(names(list({"cpu"})), (Names{"cpu"}));
}

TEST(Selection, OfTheEnvironmentDoesNotSayWhereTensorsLie) {
  for (const backend::Backend* backend : backend::backends()) {
    if (backend->memory().kind() == MemoryKind::kHost || backend->is_companion()) continue;
    const Variable variable((std::string(backend->name()) + ",cpu").c_str());
    EXPECT_EQ(names({}), (Names{"cpu"}));
    CompileOptions cuda;
    cuda.memory = MemoryKind::kCuda;
    EXPECT_EQ(names(cuda), (Names{backend->name()}));
  }
}

TEST(Selection, NamesTheMemoryOfTheNamed) {
  for (const backend::Backend* backend : backend::backends()) {
    if (backend->is_companion()) continue;
    EXPECT_EQ(select(list({backend->name()})).memory, backend->memory().kind());
  }
}

TEST(Selection, RefusesNamesThatNoBackendHas) {
  EXPECT_THROW(select(list({"gpu"})), Error);
  EXPECT_THROW(select(list({"-operand_gradients"})), Error);
  const Variable variable("nothing");
  EXPECT_THROW(select({}), Error);
  CompileOptions both = list({"cpu"});
  both.backend = "cpu";
  EXPECT_THROW(select(both), Error);
}

/// CMake says which folders of src/backend this build was made without.
TEST(Selection, SaysWhatThisBuildWasMadeWithout) {
  const std::string_view left_out_folders = SCOREMOD_TEST_LEFT_OUT;
  for (const std::string name : {"cudnn", "kernels"}) {
    const bool left_out = left_out_folders.find(name) != std::string_view::npos;
    EXPECT_EQ(backend::is_left_out(name), left_out) << name;
    EXPECT_EQ(std::ranges::count(backend::backends(), name, &backend::Backend::name), left_out ? 0 : 1) << name;
    if (!left_out) continue;
    test::expect_refusal(
        "this build of scoremod has no backend '" + name + "', only ",
        [&] {
          select(list({name, "cpu"}));
        },
        ErrorCode::kUnsupported);
    // It is not there, so leaving it out changes nothing.
    EXPECT_EQ(names(list({"-" + name})), (Names{"cpu", "reference"}));
  }
  EXPECT_FALSE(backend::is_left_out("cpu"));
  EXPECT_FALSE(backend::is_left_out("gpu"));
}

TEST(Selection, AddsCompanionsOfTheSameMemoryOnly) {
  for (const backend::Backend* companion : backend::backends()) {
    if (!companion->is_companion()) continue;
    const auto on_host = with_companions({&backend::find_backend("cpu")});
    EXPECT_EQ(std::ranges::find(on_host, companion) != on_host.end(), companion->memory().kind() == MemoryKind::kHost);
  }
}

}  // namespace
}  // namespace scoremod::planner
