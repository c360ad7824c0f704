#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"

namespace scoremod {

/// The outcome of a request: the four kinds of Error, ContextLost, and the queue's own answers.
enum class ReplyStatus : std::uint8_t {
  kDone,  ///< the work is done, on a device too, and the outputs may be read
  kInvalidArgument,
  kUnsupported,
  kEnvironment,  ///< out of memory and a device that is not there among them
  kBug,
  kFull,         ///< the queue held as many requests as it may, and refuses
  kShutDown,     ///< the queue was shut down before the request began
  kContextLost,  ///< a ContextLost: the device is of no use to this process any more, and it should be started again
};
/// "done", "full", "shut down", "context lost", or the name of the error's kind.
SCOREMOD_API const char* to_string(ReplyStatus status);

struct Reply {
  ReplyStatus status = ReplyStatus::kDone;
  std::string message;  ///< empty when done

  bool operator==(const Reply&) const = default;
};

struct RequestQueueOptions {
  /// Requests that may wait to begin, at least 1.
  std::size_t capacity = 64;
  /// If the queue is full, submit() blocks until one has begun, or with this flag answers the request with kFull.
  bool refuse_when_full = false;
  /// Threads that begin requests at the same time, each with a workspace of its own; at least 1. On the host one call
  /// uses all cores by itself. On a device a thread begins its next requests on a stream while earlier ones run there,
  /// and waits for them before it begins one on another stream.
  int threads = 1;
};

/// Runs calls of compiled attentions in threads of its own, in the order in which they were submitted. Each request
/// gets exactly one reply, whatever becomes of it, and on a device only once its work is done. A queue belongs to one
/// device: the first request's; one for another device is answered with kInvalidArgument.
///
/// The queue owns the workspaces, and no two calls that run at the same time share one. A request's buffers must live
/// until its reply; its attention is kept by the queue. Requests of several threads may come at the same time.
///
/// A forked child has none of the queue's threads. There submit() answers with kInvalidArgument, drain() throws
/// Error(kInvalidArgument), and to shut the queue down or to destroy it does nothing. Its parent serves it as before.
class SCOREMOD_API RequestQueue {
 public:
  /// Called once, by a thread of the queue or by the one that submits or shuts down, and never while the queue holds a
  /// lock. It may submit further requests if the queue refuses when full, or has room. Its exceptions are dropped.
  using Callback = std::function<void(const Reply&)>;

  /// Throws Error(kInvalidArgument) for a capacity or a number of threads below 1.
  explicit RequestQueue(const RequestQueueOptions& options = {});
  /// Shuts down. Not in a callback.
  ~RequestQueue();
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;

  /// Calls forward() or backward() of an attention with these arguments.
  std::future<Reply> submit(std::shared_ptr<const Attention> attention, ForwardArgs args);
  std::future<Reply> submit(std::shared_ptr<const Attention> attention, BackwardArgs args);
  void submit(std::shared_ptr<const Attention> attention, ForwardArgs args, Callback callback);
  void submit(std::shared_ptr<const Attention> attention, BackwardArgs args, Callback callback);

  /// Returns once each request that was submitted before the call has been answered, in whatever order. The queue goes
  /// on: requests may come meanwhile, and are not waited for. Throws Error(kInvalidArgument) in a callback, whose
  /// request would be waited for.
  void drain();
  /// Answers all requests that wait, and all that come later, with kShutDown. Returns once running ones have been
  /// answered; in a callback it does not wait for these. May be called again.
  void shut_down();
  /// Requests that wait to begin.
  std::size_t waiting() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
