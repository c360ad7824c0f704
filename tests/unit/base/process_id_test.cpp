#include "base/process_id.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace scoremod {
namespace {

TEST(ProcessId, IsTheChildsAfterAFork) {
  ASSERT_EQ(process_id(), getpid());
  const pid_t child = fork();
  if (child == 0) _exit(process_id() == getpid() && process_id() == getpid() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(process_id(), getpid());
}

}  // namespace
}  // namespace scoremod
