#include "scoremod/request_queue.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "scoremod/error.hpp"

#include "backend/backend.hpp"
#include "base/fail.hpp"
#include "runtime/request_threads.hpp"

namespace scoremod {
namespace {

/// The scratch memory of one thread of a queue: grows to the needs of its largest call.
class WorkerMemory {
 public:
  Buffer of(const backend::MemorySpace& space, std::size_t bytes) {
    if (bytes == 0) return {};
    if (memory_.bytes() < bytes) {
      memory_ = {};  // first, so that both are not there at once
      memory_ = backend::OwnedMemory(space, bytes);
      space.wait(space.own_stream());  // calls are enqueued on other streams
    }
    return {memory_.data(), memory_.bytes()};
  }

 private:
  backend::OwnedMemory memory_;
};

void run(const Attention& attention, const ForwardArgs& args, const backend::MemorySpace& space, WorkerMemory& memory) {
  attention.forward(args, memory.of(space, attention.forward_workspace_bytes()));
}

void run(const Attention& attention, const BackwardArgs& args, const backend::MemorySpace& space,
         WorkerMemory& memory) {
  attention.backward(args, memory.of(space, attention.backward_workspace_bytes()));
}

/// The error that a reply is made of is another.
void wait_quietly(const backend::MemorySpace& space, void* stream) noexcept {
  try {
    space.wait(stream);
  } catch (...) {
  }
}

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
  }
  fail_argument("expected a ReplyStatus, found the value ", static_cast<int>(status));
}

struct RequestQueue::State {
  explicit State(const RequestQueueOptions& options)
      : memory(static_cast<std::size_t>(std::max(options.threads, 0))), threads(options) {}

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
  void submit(std::shared_ptr<const Attention> attention, Args args, Callback callback) {
    threads.submit(
        [this, attention = std::move(attention), args = std::move(args)](std::size_t worker) {
          if (attention == nullptr) fail_argument("expected an attention, found a null pointer");
          check_place(*attention);
          const backend::MemorySpace& space = backend::find_backend(attention->backend()).memory();
          const backend::DeviceScope current(space, attention->device());
          try {
            run(*attention, args, space, memory[worker]);
          } catch (...) {
            wait_quietly(space, args.options.stream);  // waits for the work that it enqueued before it failed
            throw;
          }
          space.wait(args.options.stream);
        },
        std::move(callback));
  }

  std::mutex mutex;
  std::optional<Place> place;
  std::vector<WorkerMemory> memory;  ///< one for each thread
  runtime::RequestThreads threads;   ///< last: its threads use the others
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
RequestQueue::~RequestQueue() = default;

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

void RequestQueue::drain() { state_->threads.drain(); }

void RequestQueue::shut_down() { state_->threads.shut_down(); }

std::size_t RequestQueue::waiting() const { return state_->threads.waiting(); }

}  // namespace scoremod
