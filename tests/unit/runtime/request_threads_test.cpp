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
  const std::vector<std::pair<RequestThreads::Work, Reply>> jobs{
      {[](std::size_t) {}, {ReplyStatus::kDone, ""}},
      {[](std::size_t) { fail_argument("a mistake"); }, {ReplyStatus::kInvalidArgument, "a mistake"}},
      {[](std::size_t) { fail_unsupported("no backend"); }, {ReplyStatus::kUnsupported, "no backend"}},
      {[](std::size_t) { fail_environment("no device"); }, {ReplyStatus::kEnvironment, "no device"}},
      {[](std::size_t) { throw std::bad_alloc(); }, {ReplyStatus::kEnvironment, "out of memory"}},
      {[](std::size_t) { throw std::system_error(std::make_error_code(std::errc::operation_would_block)); },
       {ReplyStatus::kEnvironment, "one more thread: Resource temporarily unavailable"}},
      {[](std::size_t) { throw std::runtime_error("odd"); }, {ReplyStatus::kBug, "unexpected exception: odd"}},
      {[](std::size_t) { throw 3; }, {ReplyStatus::kBug, "an exception of no known type"}},
  };
  Replies replies(jobs.size());
  RequestThreads threads(options(64, false));
  for (std::size_t i = 0; i < jobs.size(); ++i) threads.submit(jobs[i].first, replies.callback(i));
  const std::vector<Reply>& found = replies.wait();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(found[i].status, jobs[i].second.status) << i;
    EXPECT_NE(found[i].message.find(jobs[i].second.message), std::string::npos) << found[i].message;
    EXPECT_EQ(found[i].message.empty(), i == 0);
  }
}

/// Holds the one thread of a queue until told to go on.
class Gate {
 public:
  RequestThreads::Work work() {
    return [this](std::size_t) {
      entered_.count_down();
      open_.wait();
    };
  }
  void wait_until_entered() { entered_.wait(); }
  void open() { open_.count_down(); }

 private:
  std::latch entered_{1}, open_{1};
};

TEST(RequestThreads, RefuseOrBlockWhereTheyAreFull) {
  Gate gate;
  Replies replies(4);
  RequestThreads refusing(options(2, true));
  refusing.submit(gate.work(), replies.callback(0));
  gate.wait_until_entered();
  for (std::size_t i = 1; i < 4; ++i) refusing.submit([](std::size_t) {}, replies.callback(i));
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
  blocking.submit([](std::size_t) {}, blocked.callback(1));
  std::future<void> submitter =
      std::async(std::launch::async, [&] { blocking.submit([](std::size_t) {}, blocked.callback(2)); });
  other.open();
  submitter.get();
  for (const Reply& reply : blocked.wait()) EXPECT_EQ(reply.status, ReplyStatus::kDone);
}

TEST(RequestThreads, ShuttingDownAnswersWhatWaitsAndWhatComes) {
  Gate gate;
  Replies replies(5);
  RequestThreads threads(options(2, false));
  threads.submit(gate.work(), replies.callback(0));
  gate.wait_until_entered();
  threads.submit([](std::size_t) {}, replies.callback(1));
  threads.submit([](std::size_t) {}, replies.callback(2));
  // One that blocks for room is answered too.
  std::thread submitter([&] { threads.submit([](std::size_t) {}, replies.callback(3)); });
  std::thread closer([&] { threads.shut_down(); });
  submitter.join();
  gate.open();
  closer.join();
  threads.submit([](std::size_t) {}, replies.callback(4));
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
    threads.submit([](std::size_t) {},
                   [&, reply = replies.callback(i)](const Reply& with) {
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
  std::function<void()> submit_one = [&] {
    threads.submit([&](std::size_t) { return enough ? void() : submit_one(); }, {});
  };
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
  threads.submit([](std::size_t) {},
                 [&, reply = replies.callback(1)](const Reply& with) {
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
  threads.submit([](std::size_t) {},
                 [&](const Reply&) {
                   test::expect_refusal("drain: expected a call outside of replies, found one in a reply",
                                        [&] { threads.drain(); });
                   replied.set_value();
                 });
  replied.get_future().wait();
}

TEST(RequestThreads, CallbacksMaySubmitShutDownAndThrow) {
  Replies replies(2);
  RequestThreads threads(options(4, true));
  threads.submit([](std::size_t) {},
                 [&](const Reply&) {
                   threads.submit([](std::size_t) {}, replies.callback(0));
                   threads.shut_down();
                   threads.submit([](std::size_t) {}, replies.callback(1));
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
    for (std::size_t i = 0; i < 40; ++i) threads.submit([](std::size_t) {}, replies.callback(i));
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
          const auto work = [&at_work, kind = own() % 5](std::size_t worker) {
            // Two threads never use a worker's state at once.
            EXPECT_EQ(at_work[worker].fetch_add(1), 0);
            at_work[worker].fetch_sub(1);
            if (kind == 0) throw std::bad_alloc();
            if (kind == 1) fail_environment("injected");
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
