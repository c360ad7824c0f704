#include "base/background_thread.hpp"

#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace scoremod {

BackgroundThread::~BackgroundThread() { end(); }

BackgroundThread::EndWithMainThread::~EndWithMainThread() {
  if (syscall(SYS_gettid) == getpid()) thread_.end_with_process(waiting_);
}

void BackgroundThread::add(Job job) {
  const std::lock_guard lock(mutex_);
  if (has_ended_) return;
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  job_came_.notify_one();
}

void BackgroundThread::end() {
  end_with_process(AtEnd::kLeaves);
  std::deque<Job> dropped;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  dropped.swap(jobs_);
}

void BackgroundThread::end_with_process(AtEnd waiting) {
  std::thread ending;
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    runs_waiting_ = waiting == AtEnd::kRuns;
    ending.swap(thread_);
  }
  job_came_.notify_one();
  if (ending.joinable()) ending.join();
}

void BackgroundThread::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    job_came_.wait(lock, [this] { return has_ended_ || !jobs_.empty(); });
    if (has_ended_ && (!runs_waiting_ || jobs_.empty())) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // frees its state without the lock
    lock.lock();
  }
}

}  // namespace scoremod
