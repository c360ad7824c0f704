#include "plans/store_settings.hpp"

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/cache.hpp"
#include "scoremod/error.hpp"

#include "base/warning.hpp"
#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod::plans {
namespace {

using test::ScratchFolder;

/// The variables as a test wants them, restored afterwards. Variables that are not named are not set.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& wanted) {
    for (const char* name :
         {"SCOREMOD_CACHE", "SCOREMOD_CACHE_DIR", "SCOREMOD_CACHE_BYTES", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) before_[name] = value;
      const auto found = wanted.find(name);
      set(name, found == wanted.end() ? std::nullopt : std::optional(found->second));
      names_.emplace_back(name);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) {
      const auto found = before_.find(name);
      set(name, found == before_.end() ? std::nullopt : std::optional(found->second));
    }
    set_warning_handler({});
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }

  std::map<std::string, std::string> before_;
  std::vector<std::string> names_;
};

struct Answer {
  StoreSettings settings;
  int warnings = 0;
};

Answer settings_with(const std::map<std::string, std::string>& variables) {
  const Environment environment(variables);
  Answer answer;
  set_warning_handler([&](const std::string&) { ++answer.warnings; });
  answer.settings = store_settings_from_environment();
  return answer;
}

std::string directory_with(const std::map<std::string, std::string>& variables, int warnings = 0) {
  const Answer answer = settings_with(variables);
  EXPECT_EQ(answer.warnings, warnings);
  return answer.settings.directory.string();
}

TEST(StoreSettings, TheFirstFolderThatIsNamed) {
  EXPECT_EQ(directory_with({{"SCOREMOD_CACHE_DIR", "/a"}, {"XDG_CACHE_HOME", "/b"}, {"HOME", "/c"}}), "/a");
  EXPECT_EQ(directory_with({{"XDG_CACHE_HOME", "/b"}, {"HOME", "/c"}}), "/b/scoremod");
  EXPECT_EQ(directory_with({{"HOME", "/c"}}), "/c/.cache/scoremod");
  EXPECT_EQ(directory_with({{"SCOREMOD_CACHE_DIR", ""}, {"XDG_CACHE_HOME", ""}, {"HOME", "/c"}}), "/c/.cache/scoremod");
  EXPECT_EQ(directory_with({{"XDG_CACHE_HOME", "relative"}, {"HOME", "/c"}}), "/c/.cache/scoremod");
  EXPECT_EQ(directory_with({}, 1), "");
}

TEST(StoreSettings, CanBeSwitchedOff) {
  EXPECT_EQ(directory_with({{"SCOREMOD_CACHE", "off"}, {"SCOREMOD_CACHE_DIR", "/a"}}), "");
  EXPECT_EQ(directory_with({{"SCOREMOD_CACHE", "on"}, {"SCOREMOD_CACHE_DIR", "/a"}}), "/a");
  EXPECT_EQ(directory_with({{"SCOREMOD_CACHE", "false"}, {"SCOREMOD_CACHE_DIR", "/a"}}, 1), "");
}

TEST(StoreSettings, HaveALimit) {
  const auto limit_with = [](const std::string& value, int warnings) {
    const Answer answer = settings_with({{"SCOREMOD_CACHE_DIR", "/a"}, {"SCOREMOD_CACHE_BYTES", value}});
    EXPECT_EQ(answer.warnings, warnings) << value;
    return answer.settings.max_bytes;
  };
  EXPECT_EQ(limit_with("", 0), kDefaultStoreBytes);
  EXPECT_EQ(limit_with("12345", 0), 12345);
  for (const char* wrong : {"1G", "-1", "many", "99999999999999999999999", "1.5"}) {
    EXPECT_EQ(limit_with(wrong, 1), kDefaultStoreBytes) << wrong;
  }
}

TEST(PlanStoreOfTheProcess, IsWhereItIsToldToBe) {
  const std::string before = plan_store_directory();
  const std::uint64_t limit_before = plan_store_limit();
  const ScratchFolder folder;
  set_plan_store_limit(1000000);
  set_plan_store_directory(folder.path().string());
  EXPECT_EQ(plan_store_directory(), folder.path().string());
  EXPECT_EQ(plan_store_limit(), 1000000) << "the limit stays when the folder changes";
  Record record;
  record.label = "a plan";
  record.key = Bytes(3, std::byte{1});
  EXPECT_TRUE(plan_store()->save(record));
  EXPECT_TRUE(plan_store()->load(record.kind, record.key));
  EXPECT_EQ(cache_statistics().store.writes, 1);
  EXPECT_EQ(cache_statistics().store.hits, 1);
  ASSERT_EQ(list_plan_store().size(), 1);
  EXPECT_EQ(list_plan_store()[0].label, "a plan");
  EXPECT_EQ(verify_plan_store()[0].damage, "");
  EXPECT_EQ(remove_damaged_from_plan_store().files, 0);
  EXPECT_EQ(prune_plan_store(1000000).files, 0);
  EXPECT_EQ(clear_plan_store().files, 1);
  set_plan_store_directory("");
  EXPECT_FALSE(plan_store()->is_on());
  set_plan_store_limit(limit_before);
  set_plan_store_directory(before);
}

}  // namespace
}  // namespace scoremod::plans
