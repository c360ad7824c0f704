/* A queue of requests: replies of each kind, and what is refused without one. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>

#include "expect.h"

static const char kProblem[] = "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 2, \"dim_qk\": 1, \"backward\": true}";
static const float kZeros[2] = {0, 0};
static const float kValues[2] = {1, 3};

/* The contents of a reply, and the number of replies. */
typedef struct {
  pthread_mutex_t mutex;
  pthread_cond_t came;
  int count;
  scoremod_status status;
  char message[256];
} Reply;

static void take_reply(void* user, scoremod_status status, const char* message) {
  Reply* reply = user;
  pthread_mutex_lock(&reply->mutex);
  ++reply->count;
  reply->status = status;
  snprintf(reply->message, sizeof reply->message, "%s", message);
  pthread_cond_signal(&reply->came);
  pthread_mutex_unlock(&reply->mutex);
}

static void wait_for(Reply* reply) {
  pthread_mutex_lock(&reply->mutex);
  while (reply->count == 0) pthread_cond_wait(&reply->came, &reply->mutex);
  pthread_mutex_unlock(&reply->mutex);
}

#define EMPTY_REPLY \
  { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, -1, "" }

static scoremod_forward_args forward_args(float* o, float* lse) {
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = args.k = (scoremod_const_buffer){kZeros, sizeof kZeros};
  args.v = (scoremod_const_buffer){kValues, sizeof kValues};
  args.o = (scoremod_buffer){o, 2 * sizeof(float)};
  args.lse = (scoremod_buffer){lse, 2 * sizeof(float)};
  return args;
}

static scoremod_attention* make_attention(void) {
  scoremod_attention* attention = NULL;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_create(kProblem, NULL, &attention, &message);
  EXPECT_OK(status, message);
  return attention;
}

static scoremod_request_queue* make_queue(const scoremod_request_queue_options* options) {
  scoremod_request_queue* queue = NULL;
  char* message = NULL;
  const scoremod_status status = scoremod_request_queue_create(options, &queue, &message);
  EXPECT_OK(status, message);
  return queue;
}

static void test_both_directions(void) {
  const scoremod_request_queue_options options = {sizeof options, 4, 1, 2};
  scoremod_request_queue* queue = make_queue(&options);
  scoremod_attention* attention = make_attention();
  float o[2], lse[2], dq[2], dk[2], dv[2];
  Reply forward = EMPTY_REPLY, backward = EMPTY_REPLY;
  char* message = NULL;
  const scoremod_forward_args args = forward_args(o, lse);
  scoremod_status status =
      scoremod_request_queue_submit_forward(queue, attention, &args, take_reply, &forward, &message);
  EXPECT_OK(status, message);
  wait_for(&forward);
  EXPECT(forward.status == SCOREMOD_OK && forward.message[0] == '\0');
  EXPECT(fabs((double)o[0] - 2) < 1e-6 && fabs((double)lse[0] - log(2)) < 1e-6);
  scoremod_backward_args back = {0};
  back.struct_size = sizeof back;
  back.q = back.k = (scoremod_const_buffer){kZeros, sizeof kZeros};
  back.v = back.d_o = (scoremod_const_buffer){kValues, sizeof kValues};
  back.o = (scoremod_const_buffer){o, sizeof o};
  back.lse = (scoremod_const_buffer){lse, sizeof lse};
  back.dq = (scoremod_buffer){dq, sizeof dq};
  back.dk = (scoremod_buffer){dk, sizeof dk};
  back.dv = (scoremod_buffer){dv, sizeof dv};
  status = scoremod_request_queue_submit_backward(queue, attention, &back, take_reply, &backward, &message);
  EXPECT_OK(status, message);
  /* The queue keeps the attention. */
  scoremod_attention_destroy(attention);
  wait_for(&backward);
  EXPECT(backward.status == SCOREMOD_OK);
  EXPECT(fabs((double)dv[0] - 2) < 1e-6);
  scoremod_request_queue_destroy(queue);
  EXPECT(forward.count == 1 && backward.count == 1);
}

/* Replies that are waited for by the queue alone: nothing else synchronizes with them. */
typedef struct {
  scoremod_request_queue* queue;
  int done, refused_drains;
} Replies;

static void count_reply(void* user, scoremod_status status, const char* message) {
  Replies* replies = user;
  char* why = NULL;
  (void)message;
  replies->done += status == SCOREMOD_OK;
  if (scoremod_request_queue_drain(replies->queue, &why) == SCOREMOD_INVALID_ARGUMENT &&
      strstr(why, "found one in a reply") != NULL) {
    ++replies->refused_drains;
  }
  scoremod_text_free(why);
}

static void test_draining(void) {
  enum { kRequests = 20 };
  scoremod_request_queue* queue = make_queue(NULL);
  scoremod_attention* attention = make_attention();
  float o[2 * kRequests], lse[2 * kRequests];
  Replies replies = {queue, 0, 0};
  char* message = NULL;
  for (int round = 1; round <= 2; ++round) {
    for (int i = 0; i < kRequests; ++i) {
      const scoremod_forward_args args = forward_args(o + 2 * i, lse + 2 * i);
      EXPECT_OK(scoremod_request_queue_submit_forward(queue, attention, &args, count_reply, &replies, &message),
                message);
    }
    EXPECT_OK(scoremod_request_queue_drain(queue, &message), message);
    EXPECT(replies.done == round * kRequests && replies.refused_drains == round * kRequests);
    EXPECT(fabs((double)o[2 * kRequests - 2] - 2) < 1e-6);
  }
  EXPECT_FAILS(scoremod_request_queue_drain(NULL, &message), SCOREMOD_INVALID_ARGUMENT, message,
               "queue: expected a pointer");
  scoremod_request_queue_destroy(queue);
  scoremod_attention_destroy(attention);
}

static void test_failures(void) {
  scoremod_request_queue* queue = make_queue(NULL);
  scoremod_attention* attention = make_attention();
  float o[2], lse[2];
  char* message = NULL;
  scoremod_forward_args args = forward_args(o, lse);
  Reply missing = EMPTY_REPLY, late = EMPTY_REPLY;
  args.v.data = NULL;
  scoremod_status status =
      scoremod_request_queue_submit_forward(queue, attention, &args, take_reply, &missing, &message);
  EXPECT_OK(status, message);
  wait_for(&missing);
  EXPECT(missing.status == SCOREMOD_INVALID_ARGUMENT && strstr(missing.message, "'v' is missing") != NULL);
  args = forward_args(o, lse);
  status = scoremod_request_queue_submit_forward(queue, attention, &args, NULL, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "reply: expected a function");
  args.workspace = (scoremod_buffer){o, sizeof o};
  status = scoremod_request_queue_submit_forward(queue, attention, &args, take_reply, &late, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "args.workspace: expected {NULL, 0}");
  EXPECT(late.count == 0);
  status = scoremod_request_queue_shut_down(queue, &message);
  EXPECT_OK(status, message);
  args = forward_args(o, lse);
  status = scoremod_request_queue_submit_forward(queue, attention, &args, take_reply, &late, &message);
  EXPECT_OK(status, message);
  EXPECT(late.count == 1 && late.status == SCOREMOD_SHUT_DOWN);
  EXPECT(strcmp(scoremod_status_name(late.status), "shut down") == 0);
  EXPECT(strcmp(scoremod_status_name(SCOREMOD_FULL), "full") == 0);
  scoremod_request_queue_destroy(queue);
  scoremod_request_queue_destroy(NULL);
  scoremod_attention_destroy(attention);
}

static void test_options(void) {
  scoremod_request_queue* queue = NULL;
  char* message = NULL;
  const scoremod_request_queue_options options = {sizeof options, 4, 0, -1};
  scoremod_status status = scoremod_request_queue_create(&options, &queue, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "expected at least 1 thread, found -1");
  EXPECT(queue == NULL);
  status = scoremod_request_queue_create(NULL, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "queue: expected a pointer");
}

int main(void) {
  test_both_directions();
  test_draining();
  test_failures();
  test_options();
  return failure_count > 0;
}
