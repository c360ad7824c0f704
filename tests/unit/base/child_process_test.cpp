#include "base/child_process.hpp"

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "support/scratch_folder.hpp"

namespace scoremod {
namespace {

using test::ScratchFolder;

/// Runs a script of the shell's, which is an executable of its own.
std::string run(const std::string& script, const std::string& input = {}, int limit_ms = 20'000,
                const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  const ScratchFolder folder;
  const std::filesystem::path program = folder.path() / "program";
  std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  return run_child({program.string(), environment, input, std::chrono::milliseconds(limit_ms)});
}

TEST(ChildProcess, EndsWellWithoutAWord) {
  EXPECT_EQ(run("exit 0"), "");
  EXPECT_EQ(run("echo this is fine >&2"), "");
  EXPECT_EQ(run("echo to nobody"), "");
}

TEST(ChildProcess, SaysWhatTheProgramWroteOrHowItEnded) {
  EXPECT_EQ(run("echo no such thing >&2; exit 3"), "no such thing");
  EXPECT_EQ(run("exit 3"), "it ended with status 3");
  EXPECT_EQ(run("kill -SEGV $$"), "it was ended by signal 11");
  EXPECT_EQ(run_child({"/no/such/program", {}, "", std::chrono::seconds(1)}),
            "/no/such/program could not be started: No such file or directory");
}

TEST(ChildProcess, ReadsItsInputAndItsVariables) {
  EXPECT_EQ(run("read line; test \"$line\" = 'two words'", "two words\n"), "");
  EXPECT_EQ(run("test \"$HOME\" = /elsewhere -a -n \"$PATH\"", "", 20'000, {{"HOME", "/elsewhere"}}), "");
  // More than a pipe holds, and nobody reads it.
  EXPECT_EQ(run("exit 0", std::string(std::size_t{1} << 20, 'x')), "");
}

TEST(ChildProcess, IsEndedAtItsLimit) { EXPECT_EQ(run("exec sleep 100", "", 50), "it took longer than 50 ms"); }

TEST(ChildProcess, DoesNotWaitForWhoeverInheritedItsStream) { EXPECT_EQ(run("sleep 5 & exit 0"), ""); }

TEST(ChildProcess, EndsWellInAProcessThatIgnoresItsChildren) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(run("exit 0"), "");
  EXPECT_EQ(run("echo trouble >&2; exit 1"), "trouble");
  std::signal(SIGCHLD, before);
}

TEST(ChildProcess, IsNotStartedWhereItsInputIsOverTheLimitOfAFilesSize) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_DFL);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string why = run("exit 0", std::string(std::size_t{1} << 16, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(why, "its input could not be written: File too large");
}

}  // namespace
}  // namespace scoremod
