// The C interface, whose structs a program in any language may have filled: sizes of other headers, null pointers,
// memory of too few bytes, counts and sizes of any kind. Each call has the outcome and the bits of the same call of the
// C++ interface.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/c_api.h"
#include "scoremod/error.hpp"
#include "scoremod/open_attention.hpp"
#include "scoremod/problem.hpp"
#include "scoremod/tensors.hpp"

#include "c_structs/call_memory.hpp"
#include "c_structs/choices.hpp"
#include "c_structs/drawn_call.hpp"
#include "c_structs/drawn_compile.hpp"
#include "c_structs/drawn_prepared.hpp"
#include "c_structs/drawn_problem.hpp"
#include "c_structs/drawn_sizes.hpp"
#include "c_structs/given_struct.hpp"
#include "expect.hpp"

namespace {

using scoremod::fuzz::CallMemory;
using scoremod::fuzz::Choices;
using scoremod::fuzz::expect;
using scoremod::fuzz::MadeCall;
using scoremod::fuzz::MadePrepared;

/// The status that C has for what C++ does.
scoremod_status status_of(const std::function<void()>& call) {
  try {
    call();
    return SCOREMOD_OK;
  } catch (const scoremod::Error& error) {
    expect(error.code() != scoremod::ErrorCode::kBug, error.what());
    return static_cast<scoremod_status>(error.code()) + 1;
  }
}

/// Holds the outcome of a call of C to that of C++. A failure has a message, and a success none.
void hold(scoremod_status found, char* message, scoremod_status expected, const char* what) {
  const bool is_said = message != nullptr && *message != '\0';
  if (found != expected)
    std::fprintf(stderr, "%s: %s in C (%s), %s in C++\n", what, scoremod_status_name(found), is_said ? message : "",
                 scoremod_status_name(expected));
  expect(found == expected, "a call of C has the outcome of the same call of C++");
  expect(is_said == (found != SCOREMOD_OK), "a failure has a message, and nothing else has one");
  scoremod_text_free(message);
}

struct Destroy {
  void operator()(scoremod_attention* attention) const { scoremod_attention_destroy(attention); }
  void operator()(scoremod_request_queue* queue) const { scoremod_request_queue_destroy(queue); }
};
using Handle = std::unique_ptr<scoremod_attention, Destroy>;

/// One attention, compiled through both interfaces.
struct Both {
  Handle c;
  std::shared_ptr<const scoremod::Attention> plain;
};

struct Reply {
  scoremod_status status = -1;
  int times = 0;
};

void take_reply(void* user, scoremod_status status, const char* message) {
  auto& reply = *static_cast<Reply*>(user);
  reply.status = status;
  ++reply.times;
  expect((*message == '\0') == (status == SCOREMOD_OK), "a reply has a message where it is a failure");
}

scoremod_status submit(scoremod_request_queue* queue, const scoremod_attention* attention,
                       const scoremod_forward_args* args, Reply* reply, char** message) {
  return scoremod_request_queue_submit_forward(queue, attention, args, take_reply, reply, message);
}
scoremod_status submit(scoremod_request_queue* queue, const scoremod_attention* attention,
                       const scoremod_backward_args* args, Reply* reply, char** message) {
  return scoremod_request_queue_submit_backward(queue, attention, args, take_reply, reply, message);
}

/// Gives a call to a queue and waits for its reply; the status is that of either. The message is freed.
template <class Args>
scoremod_status queued(const scoremod_attention* attention, const Args* args) {
  static const std::unique_ptr<scoremod_request_queue, Destroy> kQueue = [] {
    scoremod_request_queue* made = nullptr;
    expect(scoremod_request_queue_create(nullptr, &made, nullptr) == SCOREMOD_OK, "a queue can be made");
    return std::unique_ptr<scoremod_request_queue, Destroy>(made);
  }();
  Reply reply;
  const scoremod_status submitted = submit(kQueue.get(), attention, args, &reply, nullptr);
  expect(scoremod_request_queue_drain(kQueue.get(), nullptr) == SCOREMOD_OK, "a queue is drained");
  expect(reply.times == (submitted == SCOREMOD_OK ? 1 : 0), "a request that was taken is answered once, and no other");
  return submitted == SCOREMOD_OK ? reply.status : submitted;
}

scoremod_status direct(const scoremod_attention* attention, const scoremod_forward_args* args, char** message) {
  return scoremod_attention_forward(attention, args, message);
}
scoremod_status direct(const scoremod_attention* attention, const scoremod_backward_args* args, char** message) {
  return scoremod_attention_backward(attention, args, message);
}

void run(const scoremod::Attention& attention, const scoremod::ForwardArgs& args, scoremod::Buffer workspace) {
  attention.forward(args, workspace);
}
void run(const scoremod::Attention& attention, const scoremod::BackwardArgs& args, scoremod::Buffer workspace) {
  attention.backward(args, workspace);
}

/// Calls in one of C's three ways, and in C++; both memories have the same bits afterwards.
template <class Args>
void call(Choices& choices, const Both& attention, bool is_backward, const CallMemory& c, const CallMemory& plain,
          CallMemory& before) {
  const scoremod::fuzz::DrawnCall drawn = scoremod::fuzz::draw_call(choices, c, is_backward);
  MadeCall<Args> of_c(drawn, c);
  MadeCall<Args> of_plain(drawn, plain);
  const auto way = choices.byte() % 8;
  scoremod::fuzz::DrawnPrepared drawn_prepared;
  if (way == 1) drawn_prepared = scoremod::fuzz::draw_prepared<Args>(choices, c, of_c.given());
  before.copy(plain);
  const scoremod_status expected = status_of([&] {
    if (way == 1) MadePrepared<Args>(drawn_prepared, attention.c.get(), of_plain.get(), plain).put();
    const auto args = of_plain.plain();
    const scoremod::Buffer workspace = of_plain.workspace();
    if (way == 2 && (workspace.data != nullptr || workspace.bytes != 0)) scoremod::fuzz::refuse("a workspace");
    run(*attention.plain, args, workspace);
  });
  char* message = nullptr;
  if (way == 2) {
    expect(queued(attention.c.get(), of_c.get()) == expected, "a request has the outcome of the same call of C++");
  } else if (way == 1) {
    MadePrepared<Args> prepared(drawn_prepared, attention.c.get(), of_c.get(), c);
    const scoremod_status found = scoremod_attention_call(prepared.get(), &message);
    hold(found, message, expected, "prepared");
  } else {
    const scoremod_status found = direct(attention.c.get(), of_c.get(), &message);
    hold(found, message, expected, is_backward ? "backward" : "forward");
  }
  expect(c == plain, "a call of C writes the bits of the same call of C++");
  expect(expected == SCOREMOD_OK || c == before, "a call that is refused writes nothing");
}

/// Puts a number where an input has another: an id, a length, an offset or a page that is out of range, or a NaN.
void change_input(Choices& choices, const CallMemory& c, const CallMemory& plain) {
  const auto& block = c.blocks()[choices.byte() % (4 + c.operands())];
  const std::size_t place = choices.byte() % 8 * sizeof(std::int32_t);
  const auto number = choices.among<std::int32_t>({0, -1, 1, 2, 1000, 1 << 30, std::numeric_limits<std::int32_t>::max(),
                                                   std::numeric_limits<std::int32_t>::min(), 0x7f800000, 0x7fc00000});
  // Bytes of bool operands are 0 or 1.
  if (block.name() == "kept" || place + sizeof number > block.bytes()) return;
  std::memcpy(block.data() + place, &number, sizeof number);
  std::memcpy(plain.blocks()[static_cast<std::size_t>(&block - c.blocks().data())].data() + place, &number,
              sizeof number);
}

/// Asks both of an attention, which have to say the same.
void ask(const Both& attention) {
  char* text = nullptr;
  char* message = nullptr;
  hold(scoremod_attention_problem(attention.c.get(), &text, &message), message, SCOREMOD_OK, "problem");
  expect(scoremod::parse_problem(text) == attention.plain->problem(), "C has the problem of C++");
  scoremod_text_free(text);
  const char* name = nullptr;
  hold(scoremod_attention_backend(attention.c.get(), &name, &message), message, SCOREMOD_OK, "backend");
  expect(name == attention.plain->backend(), "C has the backend of C++");
  std::size_t bytes = 0;
  hold(scoremod_attention_forward_workspace_bytes(attention.c.get(), &bytes, &message), message, SCOREMOD_OK,
       "workspace");
  expect(bytes == attention.plain->forward_workspace_bytes(), "C has the workspace of C++");
  hold(scoremod_attention_backward_workspace_bytes(attention.c.get(), &bytes, &message), message, SCOREMOD_OK,
       "workspace");
  expect(bytes == attention.plain->backward_workspace_bytes(), "C has the workspace of C++");
}

/// Compiles through both; without an attention where both refuse.
Both compiled(Choices& choices) {
  const scoremod::fuzz::DrawnProblem problem = scoremod::fuzz::draw_problem(choices);
  const scoremod::fuzz::DrawnCompile options = scoremod::fuzz::draw_compile(choices);
  scoremod::fuzz::MadeCompile made(options);
  Both both;
  std::optional<scoremod::OpenAttention> open;
  const scoremod_status expected = status_of([&] {
    const scoremod::AttentionProblem read = scoremod::parse_problem(problem.json);
    if (scoremod::has_open_sizes(read)) {
      open = scoremod::OpenAttention::compile(read, made.plain());
    } else {
      both.plain = std::make_shared<const scoremod::Attention>(scoremod::Attention::compile(read, made.plain()));
    }
  });
  scoremod_attention* attention = nullptr;
  char* message = nullptr;
  const auto create = choices.byte() % 4 == 1 ? scoremod_attention_get : scoremod_attention_create;
  const scoremod_status found = create(problem.json.c_str(), made.get(), &attention, &message);
  both.c.reset(attention);
  hold(found, message, expected, "compile");
  expect((attention != nullptr) == (found == SCOREMOD_OK), "an attention exists where it could be made");
  if (!open) return both;

  const scoremod::fuzz::DrawnSizes drawn = scoremod::fuzz::draw_sizes(choices, problem);
  scoremod::fuzz::MadeSizes sizes(drawn);
  const scoremod_status at = status_of([&] { both.plain = open->at(sizes.plain()); });
  scoremod_attention* of_sizes = nullptr;
  const scoremod_status at_found = scoremod_attention_at(both.c.get(), sizes.get(), &of_sizes, &message);
  both.c.reset(of_sizes);
  hold(at_found, message, at, "at");
  return both;
}

/// The tensors of an attention's problem are few enough for a fuzzer. Strides may make few elements a large tensor.
bool is_small(const scoremod::AttentionProblem& problem) {
  constexpr std::int64_t kMost = 100;
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  for (const scoremod::TensorInfo& tensor : scoremod::tensors_of(problem)) {
    if (tensor.bytes > kMostBytes) return false;
  }
  for (const std::int64_t size : {problem.batch, problem.heads_q, problem.heads_kv, problem.seq_q, problem.seq_kv}) {
    if (size < 1 || size > kMost) return false;
  }
  return problem.tokens_q.value_or(1) <= kMost && problem.tokens_kv.value_or(1) <= kMost;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  setenv("SCOREMOD_THREADS", "2", 1);
  // An input decides no more than so many things. Later options take the place of these.
  static std::string length = "-max_len=224", control = "-len_control=0";
  static std::vector<char*> all(*arguments, *arguments + *count);
  all.insert(all.begin() + 1, {length.data(), control.data()});
  all.push_back(nullptr);
  *count += 2;
  *arguments = all.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Choices choices(std::span(data, size));
  const Both attention = compiled(choices);
  if (!attention.plain) return 0;
  ask(attention);
  const scoremod::AttentionProblem& problem = attention.plain->problem();
  if (!is_small(problem)) return 0;
  const std::size_t forward = attention.plain->forward_workspace_bytes();
  const std::size_t backward = attention.plain->backward_workspace_bytes();
  const CallMemory c(problem, forward, backward), plain(problem, forward, backward);
  CallMemory before(problem, forward, backward);
  for (int calls = 1 + choices.byte() % 3; calls > 0; --calls) {
    if (choices.rarely()) change_input(choices, c, plain);
    if (choices.byte() % 2 == 0) {
      call<scoremod_forward_args>(choices, attention, false, c, plain, before);
    } else {
      call<scoremod_backward_args>(choices, attention, true, c, plain, before);
    }
  }
  return 0;
}
