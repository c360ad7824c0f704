#include "runtime/request_threads.hpp"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "scoremod/error.hpp"

#include "base/current_exception.hpp"
#include "base/fail.hpp"

namespace scoremod::runtime {
namespace {

ReplyStatus status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return ReplyStatus::kInvalidArgument;
    case ErrorCode::kUnsupported: return ReplyStatus::kUnsupported;
    case ErrorCode::kEnvironment: return ReplyStatus::kEnvironment;
    case ErrorCode::kBug: return ReplyStatus::kBug;
  }
  return ReplyStatus::kBug;
}

Reply shut_down_reply() noexcept {
  try {
    return {ReplyStatus::kShutDown, "the queue was shut down before the request began"};
  } catch (...) {
    return {ReplyStatus::kShutDown, {}};  // no memory for the text itself
  }
}

}  // namespace

void answer(const RequestQueue::Callback& callback, const Reply& reply) noexcept {
  try {
    if (callback) callback(reply);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

Reply reply_of_current_exception() noexcept {
  try {
    return answer_current_exception([](const Failure& failure, std::initializer_list<std::string_view> parts) {
      Reply reply{failure.is_context_lost ? ReplyStatus::kContextLost : status_of(failure.code), {}};
      for (const std::string_view part : parts) reply.message += part;
      return reply;
    });
  } catch (...) {
    return {ReplyStatus::kEnvironment, {}};  // no memory for the text itself
  }
}

RequestThreads::RequestThreads(const RequestQueueOptions& options)
    : capacity_(options.capacity),
      refuse_when_full_(options.refuse_when_full),
      lanes_(static_cast<std::size_t>(std::max(options.threads, 0))) {
  if (options.capacity < 1) fail_argument("expected a capacity of at least 1 request, found 0");
  if (options.threads < 1) fail_argument("expected at least 1 thread, found ", options.threads);
  workers_.reserve(lanes_.size());
  completers_.reserve(lanes_.size());
  try {
    for (std::size_t worker = 0; worker < lanes_.size(); ++worker) {
      completers_.emplace_back([this, worker] { complete_jobs(lanes_[worker]); });
      workers_.emplace_back([this, worker] { begin_jobs(worker); });
    }
  } catch (const std::system_error& error) {
    stop();
    fail_environment("the system refused a thread of a request queue: ", error.what(), "; ask for fewer");
  } catch (...) {  // no memory for a thread's state
    stop();
    throw;
  }
}

RequestThreads::~RequestThreads() { stop(); }

void RequestThreads::stop() {
  shut_down();
  for (std::thread& thread : workers_) thread.join();
  {
    const std::lock_guard lock(mutex_);
    has_no_workers_ = true;
  }
  for (Lane& lane : lanes_) lane.job_began.notify_all();
  for (std::thread& thread : completers_) thread.join();
}

void RequestThreads::submit(Work work, RequestQueue::Callback callback) {
  std::unique_lock lock(mutex_);
  const auto has_room = [&] { return is_shut_down_ || jobs_.size() < capacity_; };
  if (!refuse_when_full_) room_came_.wait(lock, has_room);
  if (is_shut_down_) {
    lock.unlock();
    return answer(callback, shut_down_reply());
  }
  if (!has_room()) {
    lock.unlock();
    return answer(callback, {ReplyStatus::kFull, concat("the queue is full: ", capacity_,
                                                        " requests wait to begin; submit it again later")});
  }
  Job job{std::move(work), std::move(callback), next_number_, {}};
  try {
    jobs_.push_back(std::move(job));
    ++next_number_;
  } catch (...) {  // nothing was moved
    lock.unlock();
    return answer(job.callback, reply_of_current_exception());
  }
  lock.unlock();
  job_came_.notify_one();
}

void RequestThreads::begin_jobs(std::size_t worker) {
  Lane& lane = lanes_[worker];
  for (;;) {
    std::list<Job> taken;  // moved from list to list, which takes no memory
    {
      std::unique_lock lock(mutex_);
      lane.job_ended.wait(lock, [&] { return lane.in_flight.size() < kInFlight; });
      job_came_.wait(lock, [&] { return is_shut_down_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      taken.splice(taken.end(), jobs_, jobs_.begin());
      lane.beginning = taken.front().number;
    }
    room_came_.notify_one();
    begin(taken, worker);
    {
      const std::lock_guard lock(mutex_);
      lane.beginning = kNone;
      lane.in_flight.splice(lane.in_flight.end(), taken);
    }
    lane.job_began.notify_one();
    answered_.notify_all();
  }
}

void RequestThreads::begin(std::list<Job>& taken, std::size_t worker) {
  Job& job = taken.front();
  Reply reply;
  try {
    job.completion = job.work(worker);
  } catch (...) {
    reply = reply_of_current_exception();
  }
  job.work = nullptr;  // frees its state before the reply
  if (job.completion) return;
  answer(job.callback, reply);
  taken.clear();
}

void RequestThreads::complete_jobs(Lane& lane) {
  for (;;) {
    std::unique_lock lock(mutex_);
    lane.job_began.wait(lock, [&] { return has_no_workers_ || !lane.in_flight.empty(); });
    if (lane.in_flight.empty()) return;
    Job& job = lane.in_flight.front();  // stays where it is: this thread alone takes jobs away
    lock.unlock();
    Reply reply;
    try {
      job.completion();
    } catch (...) {
      reply = reply_of_current_exception();
    }
    job.completion = nullptr;  // frees its state before the reply
    answer(job.callback, reply);
    job.callback = nullptr;
    lock.lock();
    lane.in_flight.pop_front();
    lock.unlock();
    lane.job_ended.notify_one();
    answered_.notify_all();
  }
}

void RequestThreads::shut_down() {
  std::list<Job> unbegun;
  {
    const std::lock_guard lock(mutex_);
    is_shut_down_ = true;
    unbegun.swap(jobs_);
    if (!unbegun.empty()) {
      first_refused_ = unbegun.front().number;
      refuser_ = std::this_thread::get_id();
    }
  }
  job_came_.notify_all();
  room_came_.notify_all();
  for (const Job& job : unbegun) answer(job.callback, shut_down_reply());
  std::unique_lock lock(mutex_);
  if (!unbegun.empty()) {
    first_refused_ = kNone;
    answered_.notify_all();
  }
  if (is_own_thread()) return;  // one of those that run is the caller
  answered_.wait(lock,
                 [&] { return std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.oldest() == kNone; }); });
}

void RequestThreads::drain() {
  std::unique_lock lock(mutex_);
  if (is_own_thread() || (first_refused_ != kNone && refuser_ == std::this_thread::get_id())) {
    fail_argument(
        "drain: expected a call outside of replies, found one in a reply, which would wait for itself; drain "
        "the queue in the thread that submits");
  }
  answered_.wait(lock, [this, end = next_number_] { return has_answered_all_before(end); });
}

bool RequestThreads::has_answered_all_before(std::uint64_t number) const {
  return (jobs_.empty() || jobs_.front().number >= number) && first_refused_ >= number &&
         std::ranges::all_of(lanes_, [&](const Lane& lane) { return lane.oldest() >= number; });
}

std::size_t RequestThreads::waiting() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

bool RequestThreads::is_own_thread() const {
  const auto is_own = [](const std::thread& thread) { return thread.get_id() == std::this_thread::get_id(); };
  return std::ranges::any_of(workers_, is_own) || std::ranges::any_of(completers_, is_own);
}

}  // namespace scoremod::runtime
