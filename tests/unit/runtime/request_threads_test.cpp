#include "runtime/request_threads.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <new>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "base/fail.hpp"
#include "support/refusal.hpp"
#include "support/test_seed.hpp"

namespace scoremod::runtime {
namespace {

RequestQueueOptions options(std::size_t capacity, bool refuse, int threads = 1) {
  RequestQueueOptions made;
  made.capacity = capacity;
  made.refuse_when_full = refuse;
  made.threads = threads;
  return made;
}

constexpr auto kNothing = [](std::size_t) { return RequestThreads::Completion(); };

/// Work that leaves nothing running.
template <class Work>
RequestThreads::Work whole(Work work) {
  return [work](std::size_t) {
    work();
    return RequestThreads::Completion();
  };
}

/// Replies by the number of the request; two to one fail the test.
class Replies {
 public:
  explicit Replies(std::size_t count) : counts_(count), replies_(count), missing_(static_cast<std::ptrdiff_t>(count)) {}

  RequestQueue::Callback callback(std::size_t number) {
    return [this, number](const Reply& reply) {
      EXPECT_EQ(counts_[number].fetch_add(1), 0) << "a second reply to request " << number;
      replies_[number] = reply;
      missing_.count_down();
    };
  }
  const std::vector<Reply>& wait() {
    missing_.wait();
    return replies_;
  }

 private:
  std::vector<std::atomic<int>> counts_;
  std::vector<Reply> replies_;
  std::latch missing_;
};

TEST(RequestThreads, EveryFailureIsOneReplyOfItsKind) {
  const std::vector<std::pair<std::function<void()>, Reply>> outcomes{
      {[] {}, {ReplyStatus::kDone, ""}},
      {[] { fail_argument("a mistake"); }, {ReplyStatus::kInvalidArgument, "a mistake"}},
      {[] { fail_unsupported("no backend"); }, {ReplyStatus::kUnsupported, "no backend"}},
      {[] { fail_environment("no device"); }, {ReplyStatus::kEnvironment, "no device"}},
      {[] { throw std::bad_alloc(); }, {ReplyStatus::kEnvironment, "out of memory"}},
      {[] { throw std::system_error(std::make_error_code(std::errc::operation_would_block)); },
       {ReplyStatus::kEnvironment, "one more thread: Resource temporarily unavailable"}},
      {[] { throw std::runtime_error("odd"); }, {ReplyStatus::kBug, "unexpected exception: odd"}},
      {[] { throw 3; }, {ReplyStatus::kBug, "an exception of no known type"}},
  };
  // Each where the work begins, and where what it left running ends.
  std::vector<std::pair<RequestThreads::Work, Reply>> jobs;
  for (const auto& [outcome, reply] : outcomes) {
    jobs.emplace_back(whole(outcome), reply);
    jobs.emplace_back([outcome = outcome](std::size_t) { return outcome; }, reply);
  }
  Replies replies(jobs.size());
  RequestThreads threads(options(64, false));
  for (std::size_t i = 0; i < jobs.size(); ++i) threads.submit(jobs[i].first, replies.callback(i));
  const std::vector<Reply>& found = replies.wait();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(found[i].status, jobs[i].second.status) << i;
    EXPECT_NE(found[i].message.find(jobs[i].second.message), std::string::npos) << found[i].message;
    EXPECT_EQ(found[i].message.empty(), jobs[i].second.message.empty());
  }
}

/// Holds the one thread of a queue until told to go on.
class Gate {
 public:
  RequestThreads::Work work() {
    return whole([this] { enter(); });
  }
  /// Work that leaves running what the gate holds.
  RequestThreads::Work work_left_running() {
    return [this](std::size_t) { return [this] { enter(); }; };
  }
  void wait_until_entered() { entered_.wait(); }
  void open() { open_.count_down(); }

 private:
  void enter() {
    entered_.count_down();
    open_.wait();
  }

  std::latch entered_{1}, open_{1};
};

TEST(RequestThreads, RefuseOrBlockWhereTheyAreFull) {
  Gate gate;
  Replies replies(4);
  RequestThreads refusing(options(2, true));
  refusing.submit(gate.work(), replies.callback(0));
  gate.wait_until_entered();
  for (std::size_t i = 1; i < 4; ++i) refusing.submit(kNothing, replies.callback(i));
  EXPECT_EQ(refusing.waiting(), 2U);
  gate.open();
  const std::vector<Reply>& found = replies.wait();
  EXPECT_EQ(found[2].status, ReplyStatus::kDone);
  EXPECT_EQ(found[3],
            (Reply{ReplyStatus::kFull, "the queue is full: 2 requests wait to begin; submit it again later"}));

  Gate other;
  Replies blocked(3);
  RequestThreads blocking(options(1, false));
  blocking.submit(other.work(), blocked.callback(0));
  other.wait_until_entered();
  blocking.submit(kNothing, blocked.callback(1));
  std::future<void> submitter = std::async(std::launch::async, [&] { blocking.submit(kNothing, blocked.callback(2)); });
  other.open();
  submitter.get();
  for (const Reply& reply : blocked.wait()) EXPECT_EQ(reply.status, ReplyStatus::kDone);
}

TEST(RequestThreads, GoOnWhileWorkOfEarlierJobsRuns) {
  Gate gate;
  Replies replies(RequestThreads::kInFlight + 2);
  std::atomic<std::size_t> begun = 0;
  std::atomic<int> answered = 0;
  RequestThreads threads(options(64, false));
  threads.submit(gate.work_left_running(), [&, reply = replies.callback(0)](const Reply& with) {
    EXPECT_EQ(answered++, 0) << "work that a worker left running ends in the order in which it began";
    reply(with);
  });
  gate.wait_until_entered();
  std::latch all_that_may{static_cast<std::ptrdiff_t>(RequestThreads::kInFlight) - 1};
  for (std::size_t i = 1; i <= RequestThreads::kInFlight; ++i) {
    threads.submit(
        [&, i](std::size_t) {
          ++begun;
          if (i < RequestThreads::kInFlight) all_that_may.count_down();
          return [] {};
        },
        [&, reply = replies.callback(i)](const Reply& with) {
          ++answered;
          reply(with);
        });
  }
  threads.submit(kNothing, replies.callback(RequestThreads::kInFlight + 1));
  all_that_may.wait();
  // No more are in flight than may be: the last two wait to begin.
  EXPECT_EQ(begun, RequestThreads::kInFlight - 1);
  EXPECT_EQ(threads.waiting(), 2U);
  EXPECT_EQ(answered, 0);
  gate.open();
  for (const Reply& reply : replies.wait()) EXPECT_EQ(reply, Reply{});
}

TEST(RequestThreads, ShuttingDownAndDrainingWaitForWorkThatRuns) {
  for (const bool shuts_down : {false, true}) {
    Gate gate;
    Replies replies(2);
    RequestThreads threads(options(8, false));
    threads.submit(gate.work_left_running(), replies.callback(0));
    gate.wait_until_entered();
    threads.submit([](std::size_t) { return [] {}; }, replies.callback(1));
    std::future<void> ended =
        std::async(std::launch::async, [&] { shuts_down ? threads.shut_down() : threads.drain(); });
    EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    gate.open();
    ended.get();
    EXPECT_EQ(replies.wait()[0], Reply{});
  }
}

TEST(RequestThreads, ShuttingDownAnswersWhatWaitsAndWhatComes) {
  Gate gate;
  Replies replies(5);
  RequestThreads threads(options(2, false));
  threads.submit(gate.work(), replies.callback(0));
  gate.wait_until_entered();
  threads.submit(kNothing, replies.callback(1));
  threads.submit(kNothing, replies.callback(2));
  // One that blocks for room is answered too.
  std::thread submitter([&] { threads.submit(kNothing, replies.callback(3)); });
  std::thread closer([&] { threads.shut_down(); });
  submitter.join();
  gate.open();
  closer.join();
  threads.submit(kNothing, replies.callback(4));
  const std::vector<Reply>& found = replies.wait();
  EXPECT_EQ(found[0].status, ReplyStatus::kDone);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(found[i].status, ReplyStatus::kShutDown) << i;
  threads.shut_down();
}

TEST(RequestThreads, DrainingRunsWhatWasSubmittedBefore) {
  Gate first, later;
  Replies replies(4);
  RequestThreads threads(options(8, false));
  std::atomic<int> answered = 0;
  threads.submit(first.work(), replies.callback(0));
  for (std::size_t i = 1; i < 3; ++i) {
    threads.submit(kNothing, [&, reply = replies.callback(i)](const Reply& with) {
      ++answered;
      reply(with);
    });
  }
  first.wait_until_entered();
  std::future<int> drained = std::async(std::launch::async, [&] {
    threads.drain();
    return answered.load();
  });
  EXPECT_EQ(drained.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  first.open();
  EXPECT_EQ(drained.get(), 2);
  // Later requests are not waited for, and an empty queue is drained at once.
  threads.submit(later.work(), replies.callback(3));
  later.open();
  threads.drain();
  threads.drain();
  for (const Reply& reply : replies.wait()) EXPECT_EQ(reply.status, ReplyStatus::kDone);
}

TEST(RequestThreads, DrainingEndsThoughRequestsGoOnComing) {
  std::atomic<bool> enough = false;
  RequestThreads threads(options(8, false));
  // Each submits the next before it ends, so that the queue is never idle.
  std::function<void()> submit_one = [&] { threads.submit(whole([&] { return enough ? void() : submit_one(); }), {}); };
  submit_one();
  threads.drain();
  enough = true;
  threads.drain();
}

TEST(RequestThreads, DrainingWaitsForWhatIsShutDownMeanwhile) {
  Gate gate;
  Replies replies(2);
  std::latch refused{1}, go_on{1};
  RequestThreads threads(options(8, false));
  threads.submit(gate.work(), replies.callback(0));
  gate.wait_until_entered();
  threads.submit(kNothing, [&, reply = replies.callback(1)](const Reply& with) {
    refused.count_down();
    go_on.wait();
    test::expect_refusal("drain: expected a call outside of replies", [&] { threads.drain(); });
    reply(with);
  });
  std::thread closer([&] { threads.shut_down(); });
  refused.wait();
  gate.open();
  std::future<void> drained = std::async(std::launch::async, [&] { threads.drain(); });
  EXPECT_EQ(drained.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  go_on.count_down();
  drained.get();
  closer.join();
  EXPECT_EQ(replies.wait()[1].status, ReplyStatus::kShutDown);
}

TEST(RequestThreads, AReplyMayNotDrain) {
  std::promise<void> replied;
  RequestThreads threads(options(8, false));
  threads.submit(kNothing, [&](const Reply&) {
    test::expect_refusal("drain: expected a call outside of replies, found one in a reply", [&] { threads.drain(); });
    replied.set_value();
  });
  replied.get_future().wait();
}

TEST(RequestThreads, CallbacksMaySubmitShutDownAndThrow) {
  Replies replies(2);
  RequestThreads threads(options(4, true));
  threads.submit(kNothing, [&](const Reply&) {
    threads.submit(kNothing, replies.callback(0));
    threads.shut_down();
    threads.submit(kNothing, replies.callback(1));
    throw std::runtime_error("goes nowhere");
  });
  const std::vector<Reply>& found = replies.wait();
  EXPECT_EQ(found[0].status, ReplyStatus::kShutDown);
  EXPECT_EQ(found[1].status, ReplyStatus::kShutDown);
}

TEST(RequestThreads, DestroyingThemAnswersAll) {
  Replies replies(40);
  {
    RequestThreads threads(options(64, false, 2));
    for (std::size_t i = 0; i < 40; ++i) threads.submit(kNothing, replies.callback(i));
  }
  for (const Reply& reply : replies.wait())
    EXPECT_TRUE(reply.status == ReplyStatus::kDone || reply.status == ReplyStatus::kShutDown);
}

/// Many submitters, workers and failures at once, shut down on the way: for the thread sanitizer, too.
TEST(RequestThreads, UnderLoadEveryRequestHasOneReply) {
  constexpr std::size_t kSubmitters = 4, kEach = 200;
  std::mt19937_64 random(test::test_seed());
  for (const bool refuse : {false, true}) {
    SCOPED_TRACE("SCOREMOD_TEST_SEED=" + std::to_string(test::test_seed()));
    Replies replies(kSubmitters * kEach);
    std::atomic<int> at_work[3] = {};
    RequestThreads threads(options(8, refuse, 3));
    std::vector<std::thread> submitters;
    for (std::size_t s = 0; s < kSubmitters; ++s) {
      submitters.emplace_back([&, s, seed = random()] {
        std::mt19937_64 own(seed);
        for (std::size_t i = 0; i < kEach; ++i) {
          const auto work = [&at_work, kind = own() % 8](std::size_t worker) -> RequestThreads::Completion {
            // Two threads never use a worker's state at once.
            EXPECT_EQ(at_work[worker].fetch_add(1), 0);
            at_work[worker].fetch_sub(1);
            if (kind == 0) throw std::bad_alloc();
            if (kind == 1) fail_environment("injected");
            if (kind == 2) return [] { fail_environment("injected later"); };
            if (kind < 5) return [] { std::this_thread::yield(); };
            return {};
          };
          threads.submit(work, replies.callback(s * kEach + i));
        }
      });
    }
    const bool on_the_way = random() % 2 == 0;
    if (on_the_way) threads.shut_down();
    for (std::thread& submitter : submitters) submitter.join();
    if (!on_the_way) threads.shut_down();
    std::size_t done = 0;
    for (const Reply& reply : replies.wait()) done += reply.status == ReplyStatus::kDone ? 1 : 0;
    if (!on_the_way && !refuse) {
      EXPECT_GT(done, kSubmitters * kEach / 4);
    }
  }
}

TEST(RequestThreads, NeedRoomAndThreads) {
  test::expect_refusal("expected a capacity of at least 1 request, found 0", [] { RequestThreads(options(0, true)); });
  test::expect_refusal("expected at least 1 thread, found 0", [] { RequestThreads(options(1, true, 0)); });
}

}  // namespace
}  // namespace scoremod::runtime
