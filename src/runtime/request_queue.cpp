#include "scoremod/request_queue.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "scoremod/error.hpp"

#include "backend/backend.hpp"
#include "base/fail.hpp"
#include "base/process_id.hpp"
#include "runtime/request_memory.hpp"
#include "runtime/request_threads.hpp"

namespace scoremod {
namespace {

std::size_t workspace_bytes(const Attention& attention, const ForwardArgs&) {
  return attention.forward_workspace_bytes();
}
std::size_t workspace_bytes(const Attention& attention, const BackwardArgs&) {
  return attention.backward_workspace_bytes();
}

void call(const Attention& attention, const ForwardArgs& args, Buffer workspace) { attention.forward(args, workspace); }
void call(const Attention& attention, const BackwardArgs& args, Buffer workspace) {
  attention.backward(args, workspace);
}

/// Enqueues a call, and returns an event behind its work: null where the work is done.
template <class Args>
std::shared_ptr<const backend::StreamEvent> enqueue(const Attention& attention, const Args& args,
                                                    const backend::MemorySpace& space, runtime::RequestMemory& memory) {
  void* const stream = args.options.stream;
  const Buffer workspace = memory.take(space, workspace_bytes(attention, args), stream);
  call(attention, args, workspace);
  std::shared_ptr<const backend::StreamEvent> done = space.record_event(stream);
  memory.use_until(done, stream);
  return done;
}

/// The error that a reply is made of is another.
void wait_quietly(const backend::MemorySpace& space, void* stream) noexcept {
  try {
    space.wait(stream);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

constexpr std::string_view kOfTheParent =
    "expected a RequestQueue of this process, found one made before fork(), which has no threads here; make another";

/// Which memory and device a queue's requests go to.
struct Place {
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;
  bool operator==(const Place&) const = default;
};

}  // namespace

const char* to_string(ReplyStatus status) {
  switch (status) {
    case ReplyStatus::kDone: return "done";
    case ReplyStatus::kInvalidArgument: return to_string(ErrorCode::kInvalidArgument);
    case ReplyStatus::kUnsupported: return to_string(ErrorCode::kUnsupported);
    case ReplyStatus::kEnvironment: return to_string(ErrorCode::kEnvironment);
    case ReplyStatus::kBug: return to_string(ErrorCode::kBug);
    case ReplyStatus::kFull: return "full";
    case ReplyStatus::kShutDown: return "shut down";
    case ReplyStatus::kContextLost: return "context lost";
  }
  fail_argument("expected a ReplyStatus, found the value ", static_cast<int>(status));
}

struct RequestQueue::State {
  explicit State(const RequestQueueOptions& options)
      : memory(static_cast<std::size_t>(std::max(options.threads, 0))), threads(options) {}

  /// A forked child has none of the queue's threads, and another thread of its parent may have held the locks.
  bool is_of_this_process() const { return process == process_id(); }

  /// Throws for a request that belongs to another queue.
  void check_place(const Attention& attention) {
    const Place wanted{attention.memory(), attention.device()};
    const std::lock_guard lock(mutex);
    if (!place) place = wanted;
    if (*place == wanted) return;
    fail_argument("expected requests for one device, ", to_string(place->memory), " ", place->device,
                  ", that of the queue's first request; found one for ", to_string(wanted.memory), " ", wanted.device,
                  "; make a queue for each device");
  }

  template <class Args>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved
  void submit(std::shared_ptr<const Attention> attention, Args args, Callback callback) {
    if (!is_of_this_process())
      return runtime::answer(callback, {ReplyStatus::kInvalidArgument, std::string(kOfTheParent)});
    threads.submit(
        [this, attention = std::move(attention),
         args = std::move(args)](std::size_t worker) -> runtime::RequestThreads::Completion {
          if (attention == nullptr) fail_argument("expected an attention, found a null pointer");
          check_place(*attention);
          const backend::MemorySpace& space = backend::find_backend(attention->backend()).memory();
          const backend::DeviceScope current(space, attention->device());
          try {
            auto done = enqueue(*attention, args, space, memory[worker]);
            if (done == nullptr) return {};
            return [&space, attention, done = std::move(done)] {
              const backend::DeviceScope device(space, attention->device());
              done->wait();
            };
          } catch (...) {
            wait_quietly(space, args.options.stream);  // waits for the work that it enqueued before it failed
            throw;
          }
        },
        std::move(callback));
  }

  const pid_t process = process_id();
  std::mutex mutex;
  std::optional<Place> place;
  std::vector<runtime::RequestMemory> memory;  ///< one for each thread
  runtime::RequestThreads threads;             ///< last: its threads use the others
};

namespace {

/// A callback that fulfils a promise, and its future.
std::pair<RequestQueue::Callback, std::future<Reply>> promised() {
  auto promise = std::make_shared<std::promise<Reply>>();
  std::future<Reply> future = promise->get_future();
  return {[promise](const Reply& reply) { promise->set_value(reply); }, std::move(future)};
}

}  // namespace

RequestQueue::RequestQueue(const RequestQueueOptions& options) : state_(std::make_unique<State>(options)) {}
RequestQueue::~RequestQueue() {
  // Threads that are not there can't be joined, and what they waited for can't be destroyed.
  if (state_->is_of_this_process()) return;
  [[maybe_unused]] const State* const left = state_.release();
}

void RequestQueue::submit(std::shared_ptr<const Attention> attention, ForwardArgs args, Callback callback) {
  state_->submit(std::move(attention), std::move(args), std::move(callback));
}

void RequestQueue::submit(std::shared_ptr<const Attention> attention, BackwardArgs args, Callback callback) {
  state_->submit(std::move(attention), std::move(args), std::move(callback));
}

std::future<Reply> RequestQueue::submit(std::shared_ptr<const Attention> attention, ForwardArgs args) {
  auto [callback, reply] = promised();
  submit(std::move(attention), std::move(args), std::move(callback));
  return std::move(reply);
}

std::future<Reply> RequestQueue::submit(std::shared_ptr<const Attention> attention, BackwardArgs args) {
  auto [callback, reply] = promised();
  submit(std::move(attention), std::move(args), std::move(callback));
  return std::move(reply);
}

void RequestQueue::drain() {
  if (!state_->is_of_this_process()) fail_argument("drain: ", kOfTheParent);
  state_->threads.drain();
}

void RequestQueue::shut_down() {
  if (state_->is_of_this_process()) state_->threads.shut_down();
}

std::size_t RequestQueue::waiting() const { return state_->is_of_this_process() ? state_->threads.waiting() : 0; }

}  // namespace scoremod
