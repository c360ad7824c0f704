#include "tools/cudnn/worker_pool.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fail.hpp"

namespace scoremod::explorer {
namespace {

using Clock = std::chrono::steady_clock;

/// One child process with a pipe to its input and from its output.
class Worker {
 public:
  explicit Worker(const std::vector<std::string>& command) { start(command); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { stop(SIGKILL); }

  int output() const { return output_; }
  bool busy() const { return busy_; }
  std::size_t job() const { return job_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - since_).count(); }

  void give(std::size_t job) {
    const std::string line = std::to_string(job) + "\n";
    job_ = job;
    busy_ = true;
    since_ = Clock::now();
    // A worker that died between jobs shows as the end of its output.
    [[maybe_unused]] const ssize_t written = write(input_, line.data(), line.size());
  }

  /// Reads all available bytes. Returns false at the end of the output.
  bool receive() {
    char chunk[4096];
    const ssize_t count = read(output_, chunk, sizeof(chunk));
    if (count <= 0) return false;
    buffer_.append(chunk, static_cast<std::size_t>(count));
    return true;
  }

  /// The answer, once a whole line is there.
  bool take_line(std::string* line) {
    const std::size_t end = buffer_.find('\n');
    if (end == std::string::npos) return false;
    *line = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    busy_ = false;
    return true;
  }

  /// Ends the process and says how it ended.
  std::string stop(int signal) {
    if (process_ <= 0) return "";
    close(input_);
    close(output_);
    if (signal != 0) kill(process_, signal);
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    if (WIFSIGNALED(status))
      return concat("ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
    return concat("exited with status ", WEXITSTATUS(status));
  }

 private:
  void start(const std::vector<std::string>& command) {
    int to_child[2], from_child[2];
    if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0)
      fail_environment("pipe: ", std::strerror(errno));
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    process_ = fork();
    if (process_ < 0) fail_environment("fork: ", std::strerror(errno));
    if (process_ == 0) {
      dup2(to_child[0], STDIN_FILENO);
      dup2(from_child[1], STDOUT_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(to_child[0]);
    close(from_child[1]);
    input_ = to_child[1];
    output_ = from_child[0];
  }

  pid_t process_ = -1;
  int input_ = -1, output_ = -1;
  bool busy_ = false;
  std::size_t job_ = 0;
  Clock::time_point since_;
  std::string buffer_;
};

}  // namespace

void run_jobs(const std::vector<std::string>& command, const std::vector<std::size_t>& jobs, int worker_count,
              int timeout_seconds, const std::function<void(const JobResult&)>& on_result) {
  signal(SIGPIPE, SIG_IGN);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < worker_count; ++i) workers.push_back(std::make_unique<Worker>(command));
  std::size_t next = 0, finished = 0;
  while (finished < jobs.size()) {
    std::vector<pollfd> polls;
    for (auto& worker : workers) {
      if (!worker->busy() && next < jobs.size()) worker->give(jobs[next++]);
      polls.push_back({worker->output(), POLLIN, 0});
    }
    poll(polls.data(), polls.size(), 200);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      auto& worker = workers[i];
      std::string line;
      const bool ended = polls[i].revents != 0 && !worker->receive();
      if (worker->busy() && worker->take_line(&line)) {
        on_result({worker->job(), false, line});
        ++finished;
      } else if (worker->busy() && (ended || worker->seconds() > timeout_seconds)) {
        const std::size_t job = worker->job();
        const std::string how = worker->stop(ended ? 0 : SIGKILL);
        on_result({job, true, ended ? how : concat("no answer in ", timeout_seconds, " s")});
        ++finished;
        worker = std::make_unique<Worker>(command);
      } else if (ended) {
        fail_environment("a worker of the explorer ended before it had work: ", worker->stop(0));
      }
    }
  }
}

}  // namespace scoremod::explorer
