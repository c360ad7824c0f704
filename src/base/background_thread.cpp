#include "base/background_thread.hpp"

#include <mutex>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace scoremod {

BackgroundThread::~BackgroundThread() { end(); }

BackgroundThread::EndWithMainThread::~EndWithMainThread() {
  if (syscall(SYS_gettid) == getpid()) thread_.end_with_process(waiting_);
}

BackgroundThread::State& BackgroundThread::state() {
  if (state_->process != process_id()) {
    // Nobody can join the parent's thread here, or destroy what it waits on; its jobs may hold the parent's plans.
    [[maybe_unused]] const State* const left = state_.release();
    state_ = std::make_unique<State>();
  }
  return *state_;
}

void BackgroundThread::add(Job job) {
  const std::lock_guard lock(mutex_);
  State& own = state();
  if (own.has_ended) return;
  own.jobs.push_back(std::move(job));
  if (!own.thread.joinable()) own.thread = std::thread([this, &own] { work(own); });
  own.job_came.notify_one();
}

void BackgroundThread::end() {
  end_with_process(AtEnd::kLeaves);
  std::deque<Job> dropped;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  dropped.swap(state().jobs);
}

void BackgroundThread::end_with_process(AtEnd waiting) {
  std::thread ending;
  {
    const std::lock_guard lock(mutex_);
    State& own = state();
    own.has_ended = true;
    own.runs_waiting = waiting == AtEnd::kRuns;
    ending.swap(own.thread);
    own.job_came.notify_one();
  }
  if (ending.joinable()) ending.join();
}

void BackgroundThread::work(State& state) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    state.job_came.wait(lock, [&state] { return state.has_ended || !state.jobs.empty(); });
    if (state.has_ended && (!state.runs_waiting || state.jobs.empty())) return;
    Job job = std::move(state.jobs.front());
    state.jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // frees its state without the lock
    lock.lock();
  }
}

}  // namespace scoremod
