#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "scoremod/request_queue.hpp"

namespace scoremod::runtime {

/// The threads of a request queue, which know nothing of attention: each runs jobs one after the other and hands every
/// job's reply to its callback, exactly once.
class RequestThreads {
 public:
  /// Does a request's work, as the `worker`-th thread; what it throws becomes the reply.
  using Work = std::function<void(std::size_t worker)>;

  explicit RequestThreads(const RequestQueueOptions& options);
  ~RequestThreads();
  RequestThreads(const RequestThreads&) = delete;
  RequestThreads& operator=(const RequestThreads&) = delete;

  void submit(Work work, RequestQueue::Callback callback);
  void shut_down();
  std::size_t waiting() const;

 private:
  struct Job {
    Work work;
    RequestQueue::Callback callback;
  };

  void serve(std::size_t worker);
  bool is_own_thread() const;

  const std::size_t capacity_;
  const bool refuse_when_full_;
  mutable std::mutex mutex_;
  std::condition_variable job_came_, room_came_, became_idle_;
  std::deque<Job> jobs_;
  std::size_t running_ = 0;
  bool is_shut_down_ = false;
  std::vector<std::thread> threads_;
};

/// The reply that says what the exception in flight does. Call it in a catch block only.
Reply reply_of_current_exception() noexcept;

}  // namespace scoremod::runtime
