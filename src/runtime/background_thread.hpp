#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace scoremod::runtime {

/// A thread that does jobs that nobody waits for, one after the other. It begins with the first.
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

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable job_came_;
  std::deque<Job> jobs_;
  bool has_ended_ = false;
  std::thread thread_;
};

/// The one of the process for plans. It ends when the process does, before what was loaded before it is unloaded.
BackgroundThread& planning_thread();

}  // namespace scoremod::runtime
