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

/// The threads of a request queue, which know nothing of attention. Workers begin jobs one after the other. Where a job
/// leaves work running on a device, its worker goes on to the next, and a second thread waits for that work. Every
/// job's reply goes to its callback, exactly once.
class RequestThreads {
 public:
  /// Waits for the work that a request left running. Its exception becomes the reply.
  using Completion = std::function<void()>;
  /// Begins a request's work, as the `worker`-th thread; empty if it is done then. Its exception becomes the reply.
  using Work = std::function<Completion(std::size_t worker)>;
  /// The most jobs of a worker whose work runs at a time. With two, a device has its next work when it ends one; more
  /// cover the time until the host learns of that end where work is short.
  static constexpr std::size_t kInFlight = 8;

  explicit RequestThreads(const RequestQueueOptions& options);
  ~RequestThreads();
  RequestThreads(const RequestThreads&) = delete;
  RequestThreads& operator=(const RequestThreads&) = delete;

  void submit(Work work, RequestQueue::Callback callback);
  void drain();
  void shut_down();
  std::size_t waiting() const;

 private:
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  struct Job {
    Work work;
    RequestQueue::Callback callback;
    std::uint64_t number = 0;  ///< of all jobs that were taken, in the order in which they came
    Completion completion;
  };
  /// The jobs that a worker took and has not answered.
  struct Lane {
    std::uint64_t beginning = kNone;  ///< the job that the worker begins, or answers itself
    std::list<Job> in_flight;         ///< in the order in which they began
    std::condition_variable job_began, job_ended;

    std::uint64_t oldest() const { return in_flight.empty() ? beginning : in_flight.front().number; }
  };

  void begin_jobs(std::size_t worker);
  void complete_jobs(Lane& lane);
  /// Begins the only job of a list, and answers it unless work of it is left running.
  void begin(std::list<Job>& taken, std::size_t worker);
  void stop();
  bool is_own_thread() const;
  bool has_answered_all_before(std::uint64_t number) const;

  const std::size_t capacity_;
  const bool refuse_when_full_;
  mutable std::mutex mutex_;
  std::condition_variable job_came_, room_came_, answered_;
  std::list<Job> jobs_;  ///< an empty one takes no memory, so that it can be emptied without any
  std::uint64_t next_number_ = 0;
  std::vector<Lane> lanes_;              ///< one for each worker
  std::uint64_t first_refused_ = kNone;  ///< the first job that shut_down() is still to answer
  std::thread::id refuser_;              ///< the thread that answers those
  bool is_shut_down_ = false;
  bool has_no_workers_ = false;  ///< they have ended: nothing begins any more
  std::vector<std::thread> workers_, completers_;
};

/// Calls a callback, if there is one. Its exception has nowhere to go.
void answer(const RequestQueue::Callback& callback, const Reply& reply) noexcept;

/// The reply for the exception in flight. Call it in a catch block only.
Reply reply_of_current_exception() noexcept;

}  // namespace scoremod::runtime
