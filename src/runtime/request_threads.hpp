#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "scoremod/request_queue.hpp"

namespace scoremod::runtime {

/// The threads of a request queue, which know nothing of attention. Each runs jobs one after the other and hands every
/// job's reply to its callback, exactly once.
class RequestThreads {
 public:
  /// Does a request's work, as the `worker`-th thread; its exception becomes the reply.
  using Work = std::function<void(std::size_t worker)>;

  explicit RequestThreads(const RequestQueueOptions& options);
  ~RequestThreads();
  RequestThreads(const RequestThreads&) = delete;
  RequestThreads& operator=(const RequestThreads&) = delete;

  void submit(Work work, RequestQueue::Callback callback);
  void drain();
  void shut_down();
  std::size_t waiting() const;

 private:
  struct Job {
    Work work;
    RequestQueue::Callback callback;
    std::uint64_t number = 0;  ///< of all jobs that were taken, in the order in which they came
  };
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

  void serve(std::size_t worker);
  void stop();
  bool is_own_thread() const;
  bool has_answered_all_before(std::uint64_t number) const;

  const std::size_t capacity_;
  const bool refuse_when_full_;
  mutable std::mutex mutex_;
  std::condition_variable job_came_, room_came_, answered_;
  std::list<Job> jobs_;  ///< an empty one takes no memory, so that it can be emptied without any
  std::uint64_t next_number_ = 0;
  std::vector<std::uint64_t> running_;   ///< the job of each thread, or kNone
  std::uint64_t first_refused_ = kNone;  ///< the first job that shut_down() is still to answer
  std::thread::id refuser_;              ///< the thread that answers those
  bool is_shut_down_ = false;
  std::vector<std::thread> threads_;
};

/// The reply for the exception in flight. Call it in a catch block only.
Reply reply_of_current_exception() noexcept;

}  // namespace scoremod::runtime
