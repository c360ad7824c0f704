#pragma once

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <sys/types.h>
#include <thread>

#include "base/fork_mutex.hpp"
#include "base/process_id.hpp"

namespace scoremod {

/// A thread that does jobs that nobody waits for, one after the other. It begins with the first. A forked child has
/// neither its parent's thread nor its jobs, and begins a thread of its own.
class BackgroundThread {
 public:
  using Job = std::function<void()>;

  BackgroundThread() = default;
  /// As end().
  ~BackgroundThread();
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;

  /// A job throws nothing. After end() it is dropped.
  void add(Job job);
  /// Waits for the job under way, and drops those that have not begun.
  void end();
  /// The jobs that have not begun when the process ends: they run first, or stay as they are. To destroy what they hold
  /// in another thread may need turns, which only a job takes.
  enum class AtEnd { kRuns, kLeaves };
  void end_with_process(AtEnd waiting);

  /// A thread for the rest of the process. It is never destroyed, since threads may ask for it while the process ends.
  /// It ends with the process, before the libraries that were loaded before it are unloaded. If the main thread has
  /// called this too, it ends before all exit handlers. They also destroy the state of libraries that were loaded
  /// later, which jobs may need. `Purpose` is a type that tells one such thread from another, and has an AtEnd kAtEnd.
  template <class Purpose>
  static BackgroundThread& of_process() {
    static auto& made = *[] {
      auto* thread = new BackgroundThread;
      std::atexit([] { of_process<Purpose>().end_with_process(Purpose::kAtEnd); });
      return thread;
    }();
    static thread_local const EndWithMainThread end_with_main_thread(made, Purpose::kAtEnd);
    return made;
  }

 private:
  /// exit() destroys the calling thread's thread_local objects before anything else.
  class EndWithMainThread {
   public:
    EndWithMainThread(BackgroundThread& thread, AtEnd waiting) : thread_(thread), waiting_(waiting) {}
    ~EndWithMainThread();
    EndWithMainThread(const EndWithMainThread&) = delete;
    EndWithMainThread& operator=(const EndWithMainThread&) = delete;

   private:
    BackgroundThread& thread_;
    const AtEnd waiting_;
  };

  struct State {
    const pid_t process = process_id();
    std::condition_variable job_came;
    std::deque<Job> jobs;
    bool has_ended = false, runs_waiting = false;
    std::thread thread;
  };

  /// This process's. The caller holds the mutex.
  State& state();
  void work(State& state);

  ForkMutex mutex_;
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

}  // namespace scoremod
