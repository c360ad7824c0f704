#include "scoremod/request_queue.hpp"

#include <future>
#include <latch>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention_cache.hpp"
#include "scoremod/error.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/problem_buffers.hpp"

#include "support/problem_for.hpp"

namespace scoremod {
namespace {

std::shared_ptr<const Attention> attention_of(const AttentionProblem& problem) {
  CompileOptions options;
  options.backend = "cpu";
  options.threads = 1;
  return std::make_shared<const Attention>(Attention::compile(problem, options));
}

AttentionProblem problem_of(std::int64_t seq, const char* program = "value = score") {
  AttentionProblem problem = test::small_problem();
  problem.seq_q = problem.seq_kv = seq;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  return problem;
}

/// Requests of different sizes, several at a time, have the bits that calls by themselves have: no workspace is shared.
TEST(RequestQueue, RequestsComputeWhatCallsDo) {
  RequestQueueOptions options;
  options.threads = 3;
  RequestQueue queue(options);
  struct Request {
    std::shared_ptr<const Attention> attention;
    ProblemInputs inputs;
    std::unique_ptr<ProblemBuffers> found, expected;
    std::future<Reply> reply;
  };
  std::vector<Request> requests;
  for (int i = 0; i < 24; ++i) {
    const AttentionProblem problem = problem_of(3 + 40 * (i % 4), i % 2 == 0 ? "value = score" : "value = tanh(score)");
    Request& request = requests.emplace_back();
    request.attention = attention_of(problem);
    request.inputs = random_inputs(problem, {static_cast<std::uint64_t>(i), {}});
    request.found = std::make_unique<ProblemBuffers>(problem, buffers_of(request.inputs));
    request.expected = std::make_unique<ProblemBuffers>(problem, buffers_of(request.inputs));
  }
  for (Request& request : requests) request.reply = queue.submit(request.attention, request.found->forward());
  for (Request& request : requests) EXPECT_EQ(request.reply.get(), Reply{});
  for (Request& request : requests) request.reply = queue.submit(request.attention, request.found->backward());
  for (Request& request : requests) {
    EXPECT_EQ(request.reply.get(), Reply{});
    request.attention->forward(request.expected->forward());
    request.attention->backward(request.expected->backward());
    for (std::size_t i = 0; i < request.found->outputs().size(); ++i)
      EXPECT_EQ(request.found->outputs()[i].bytes, request.expected->outputs()[i].bytes);
  }
}

TEST(RequestQueue, MistakesAreRepliesToo) {
  RequestQueue queue;
  const AttentionProblem problem = problem_of(4);
  const ProblemInputs inputs = random_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  ForwardArgs args = buffers.forward();
  args.k = {};
  const Reply missing = queue.submit(attention_of(problem), args).get();
  EXPECT_EQ(missing.status, ReplyStatus::kInvalidArgument);
  EXPECT_NE(missing.message.find("'k' is missing"), std::string::npos) << missing.message;
  const Reply null = queue.submit(nullptr, buffers.forward()).get();
  EXPECT_EQ(null, (Reply{ReplyStatus::kInvalidArgument, "expected an attention, found a null pointer"}));
  AttentionProblem forward_only = problem;
  forward_only.backward = false;
  const Reply without = queue.submit(attention_of(forward_only), buffers.backward()).get();
  EXPECT_EQ(without.status, ReplyStatus::kInvalidArgument);
  // The queue goes on.
  EXPECT_EQ(queue.submit(attention_of(problem), buffers.forward()).get(), Reply{});
}

TEST(RequestQueue, WhatIsShutDownRunsNothing) {
  RequestQueue queue;
  const AttentionProblem problem = problem_of(4);
  const ProblemInputs inputs = random_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  queue.shut_down();
  EXPECT_EQ(queue.submit(attention_of(problem), buffers.forward()).get().status, ReplyStatus::kShutDown);
  for (const OutputTensor& output : buffers.outputs()) {
    for (const std::byte byte : output.bytes) ASSERT_EQ(byte, std::byte{0xff});
  }
}

/// A thread of the parent's is in a reply meanwhile, for which the child must not wait.
TEST(RequestQueue, OfAParentServesNobodyInAChild) {
  const AttentionProblem problem = problem_of(4);
  const ProblemInputs inputs = random_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  const auto attention = attention_of(problem);
  auto queue = std::make_unique<RequestQueue>();
  std::latch began(1), may_end(1);
  queue->submit(attention, buffers.forward(), [&](const Reply&) {
    began.count_down();
    may_end.wait();
  });
  began.wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const Reply reply = queue->submit(attention, buffers.forward()).get();
    bool is_refused = false;
    try {
      queue->drain();
    } catch (const Error& error) {
      is_refused = error.code() == ErrorCode::kInvalidArgument;
    }
    queue->shut_down();
    const bool is_idle = queue->waiting() == 0;
    queue.reset();
    RequestQueue own;
    const bool own_serves = own.submit(attention, buffers.forward()).get() == Reply{};
    const bool says_so =
        reply.status == ReplyStatus::kInvalidArgument && reply.message.find("before fork()") != std::string::npos;
    _exit(says_so && is_refused && is_idle && own_serves ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  auto later = queue->submit(attention, buffers.forward());
  may_end.count_down();
  queue->drain();
  EXPECT_EQ(later.get(), Reply{});
}

}  // namespace
}  // namespace scoremod
