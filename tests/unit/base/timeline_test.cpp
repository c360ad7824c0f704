#include "base/timeline.hpp"

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/concat.hpp"
#include "base/warning.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod {
namespace {

class Timeline : public testing::Test {
 protected:
  Timeline() { setenv("SCOREMOD_TIMELINE", file_.c_str(), 1); }
  ~Timeline() override { unsetenv("SCOREMOD_TIMELINE"); }

  std::vector<nlohmann::json> steps() const {
    std::vector<nlohmann::json> read;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) read.push_back(nlohmann::json::parse(line));
    return read;
  }

  const test::ScratchFolder folder_;
  const std::string file_ = folder_.path() / "timeline";
};

TEST_F(Timeline, HasALineOfJsonForEachStep) {
  const auto now = [] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const double before = now();
  {
    const TimedStep outer("outer", "a \"name\" \\ with\nall");
    TimedStep inner("inner");
    inner.name("known later");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const double after = now();
  const std::vector<nlohmann::json> found = steps();
  ASSERT_EQ(found.size(), 2u);
  const nlohmann::json &inner = found[0], &outer = found[1];
  EXPECT_EQ(inner.at("step"), "inner");
  EXPECT_EQ(inner.at("what"), "known later");
  EXPECT_EQ(outer.at("what"), "a \"name\" \\ with all");
  EXPECT_EQ(outer.at("process"), getpid());
  for (const nlohmann::json& step : found) {
    const double begin = step.at("begin_ms"), end = step.at("end_ms");
    EXPECT_GE(begin, before - 0.001);
    EXPECT_GE(end, begin + 4.99);
    EXPECT_LE(end, after + 0.001);
  }
}

TEST_F(Timeline, HasTheLinesOfThreadsWhole) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      for (int j = 0; j < 50; ++j) const TimedStep step("step", concat(i, std::string(100, 'x')));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(steps().size(), 400u);
}

TEST_F(Timeline, IsNotWrittenWhereNobodyAsks) {
  unsetenv("SCOREMOD_TIMELINE");
  {
    const TimedStep step("step");
    EXPECT_FALSE(step.is_written());
  }
  EXPECT_TRUE(steps().empty());
}

TEST_F(Timeline, ThatCannotBeWrittenIsAWarning) {
  std::vector<std::string> warnings;
  const WarningHandler before = set_warning_handler([&](const std::string& text) { warnings.push_back(text); });
  setenv("SCOREMOD_TIMELINE", (folder_.path() / "none" / "timeline").c_str(), 1);
  { const TimedStep step("step"); }
  { const TimedStep step("step"); }
  set_warning_handler(before);
  ASSERT_EQ(warnings.size(), 1u) << "once";
  EXPECT_NE(warnings[0].find("SCOREMOD_TIMELINE"), std::string::npos);
  EXPECT_NE(warnings[0].find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace scoremod
