#include "scoremod/request_queue.hpp"

#include <limits>
#include <memory>
#include <utility>

#include "scoremod/c_api.h"

#include "base/fail.hpp"
#include "c_api/attention_handle.hpp"
#include "c_api/convert.hpp"
#include "c_api/guard.hpp"

struct scoremod_request_queue {
  scoremod::RequestQueue queue;
};

namespace scoremod::c_api {
namespace {

scoremod_status status_of(ReplyStatus status) {
  switch (status) {
    case ReplyStatus::kDone: return SCOREMOD_OK;
    case ReplyStatus::kInvalidArgument: return SCOREMOD_INVALID_ARGUMENT;
    case ReplyStatus::kUnsupported: return SCOREMOD_UNSUPPORTED;
    case ReplyStatus::kEnvironment: return SCOREMOD_ENVIRONMENT;
    case ReplyStatus::kBug: return SCOREMOD_BUG;
    case ReplyStatus::kFull: return SCOREMOD_FULL;
    case ReplyStatus::kShutDown: return SCOREMOD_SHUT_DOWN;
    case ReplyStatus::kContextLost: return SCOREMOD_CONTEXT_LOST;
  }
  return SCOREMOD_BUG;
}

template <class Args>
scoremod_status submit(scoremod_request_queue* queue, const scoremod_attention* attention, const Args* args,
                       scoremod_reply reply, void* user, char** message) {
  return guard(message, [&] {
    require(queue, "queue");
    require(attention, "attention");
    if (reply == nullptr) fail_argument("reply: expected a function, found NULL");
    auto call = convert(args);
    if (call.workspace.data != nullptr || call.workspace.bytes != 0) {
      fail_argument("args.workspace: expected {NULL, 0}, since a queue owns the workspaces; found ",
                    call.workspace.bytes, " bytes");
    }
    queue->queue.submit(of_fixed_sizes(attention), std::move(call.args), [reply, user](const Reply& answer) {
      reply(user, status_of(answer.status), answer.message.c_str());
    });
  });
}

}  // namespace
}  // namespace scoremod::c_api

using scoremod::c_api::guard;
using scoremod::c_api::require;

extern "C" {

scoremod_status scoremod_request_queue_create(const scoremod_request_queue_options* options,
                                              scoremod_request_queue** queue, char** message) {
  if (queue != nullptr) *queue = nullptr;
  return guard(message, [&] {
    require(queue, "queue");
    *queue = new scoremod_request_queue{scoremod::RequestQueue(scoremod::c_api::convert(options))};
  });
}

void scoremod_request_queue_destroy(scoremod_request_queue* queue) { delete queue; }

scoremod_status scoremod_request_queue_drain(scoremod_request_queue* queue, char** message) {
  return guard(message, [&] {
    require(queue, "queue");
    queue->queue.drain();
  });
}

scoremod_status scoremod_request_queue_shut_down(scoremod_request_queue* queue, char** message) {
  return guard(message, [&] {
    require(queue, "queue");
    queue->queue.shut_down();
  });
}

scoremod_status scoremod_request_queue_submit_forward(scoremod_request_queue* queue,
                                                      const scoremod_attention* attention,
                                                      const scoremod_forward_args* args, scoremod_reply reply,
                                                      void* user, char** message) {
  return scoremod::c_api::submit(queue, attention, args, reply, user, message);
}

scoremod_status scoremod_request_queue_submit_backward(scoremod_request_queue* queue,
                                                       const scoremod_attention* attention,
                                                       const scoremod_backward_args* args, scoremod_reply reply,
                                                       void* user, char** message) {
  return scoremod::c_api::submit(queue, attention, args, reply, user, message);
}

}  // extern "C"
