// A store that this user may not write to: plans are built and used, nothing is written, and one warning says why.
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include "scoremod/cache.hpp"

#include "base/warning.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_driver/fake_device.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Root may write everywhere: its process becomes that of another user, for the object's life.
class OrdinaryUser {
 public:
  OrdinaryUser() {
    if (before_ == 0 && ::seteuid(kNobody) != 0) ADD_FAILURE() << "the system refused another user";
  }
  ~OrdinaryUser() {
    if (before_ == 0 && ::seteuid(0) != 0) ADD_FAILURE() << "the system refused root";
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  const uid_t before_ = ::geteuid();
};

class ReadOnlyStore : public test::OnFakeDevice {
 protected:
  void SetUp() override {
    OnFakeDevice::SetUp();
    if (IsSkipped()) return;
    directory_ = plan_store_directory();
    use(forward(16));  // whatever the compiler opens, it has opened
    drop_plans();
    set_plan_store_directory(folder_.path());
    constexpr auto kReadOnly = static_cast<fs::perms>(0555);
    fs::permissions(folder_.path(), kReadOnly);
    handler_ = set_warning_handler([this](const std::string& text) { warnings_.push_back(text); });
  }
  void TearDown() override {
    if (!IsSkipped()) {
      set_warning_handler(handler_);
      set_plan_store_directory(directory_);
      fs::permissions(folder_.path(), fs::perms::owner_all);
    }
    OnFakeDevice::TearDown();
  }

  static AttentionProblem forward(std::int64_t dim) {
    AttentionProblem problem = test::small_problem("value = score", DType::kBF16, dim);
    problem.backward = problem.stats = false;
    return problem;
  }
  static void use(const AttentionProblem& problem) { test::DeviceCalls(problem, test::fake_device("a100")).run(); }

  const test::ScratchFolder folder_;
  std::vector<std::string> warnings_;

 private:
  std::string directory_;
  WarningHandler handler_;
};

TEST_F(ReadOnlyStore, IsDoneWithout) {
  {
    const OrdinaryUser user;
    for (const std::int64_t dim : {16, 32, 64, 32}) {
      test::fake_cuda::take_launches();
      EXPECT_NO_THROW(use(forward(dim)));
      EXPECT_GE(test::fake_cuda::take_launches().size(), 1u);
    }
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
  EXPECT_GE(cache_statistics().store.failed_writes, 3u);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(StartsWith("plans are not stored: cannot write "),
                                           HasSubstr("Permission denied"), HasSubstr("set SCOREMOD_CACHE_DIR"))));
}

}  // namespace
}  // namespace scoremod
