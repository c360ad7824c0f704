/* A server's loop in C99: requests go into a queue, which runs them in a thread of its own and answers each once. Here
 * three requests attend with a soft cap; their results are held to those of calls without a queue. */
#include <stdio.h>
#include <string.h>

#include <scoremod/c_api.h>

enum { kRequests = 3, kQueries = 32, kHeads = 2, kDim = 16, kElements = kQueries * kHeads * kDim };

static const char kProblem[] =
    "{\"batch\": 1, \"heads_q\": 2, \"seq_q\": 32, \"dim_qk\": 16,"
    " \"program\": [\"value = 20.0 * tanh(score / 20.0)\", \"keep = q_idx >= kv_idx\"]}";

/* A request, whose memory lives until its reply. */
typedef struct Request {
  int number;
  float q[kElements], k[kElements], v[kElements], o[kElements];
  scoremod_status status;
  int replies;
} Request;

static Request requests[kRequests];

static void fill(Request* each, int number) {
  each->number = number;
  for (int i = 0; i < kElements; ++i) {
    each->q[i] = (float)((i + number) * 37 % 101) / 50 - 1;
    each->k[i] = (float)((i + number) * 53 % 103) / 50 - 1;
    each->v[i] = (float)((i + number) * 71 % 107) / 50 - 1;
  }
}

static scoremod_forward_args args_of(const Request* each, float* o) {
  const size_t bytes = sizeof each->q;
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = (scoremod_const_buffer){each->q, bytes};
  args.k = (scoremod_const_buffer){each->k, bytes};
  args.v = (scoremod_const_buffer){each->v, bytes};
  args.o = (scoremod_buffer){o, bytes};
  return args;
}

/* Called by the queue's thread, once for each request, when its output is written. */
static void on_reply(void* user, scoremod_status status, const char* message) {
  Request* each = user;
  each->status = status;
  each->replies += 1;
  if (status != SCOREMOD_OK) fprintf(stderr, "request %d: %s\n", each->number, message);
}

static int failed(scoremod_status status, char* message) {
  if (status == SCOREMOD_OK) return 0;
  fprintf(stderr, "%s: %s\n", scoremod_status_name(status), message != NULL ? message : "no memory for a message");
  scoremod_text_free(message);
  return 1;
}

/* Whether the output of a request is that of a call, which computes the same with the same arguments. */
static int is_right(const scoremod_attention* attention, const Request* each) {
  static float wanted[kElements];
  char* message = NULL;
  const scoremod_forward_args args = args_of(each, wanted);
  if (failed(scoremod_attention_forward(attention, &args, &message), message)) return 0;
  return each->replies == 1 && each->status == SCOREMOD_OK && memcmp(wanted, each->o, sizeof wanted) == 0;
}

int main(void) {
  scoremod_attention* attention = NULL;
  scoremod_request_queue* queue = NULL;
  char* message = NULL;
  if (failed(scoremod_attention_create(kProblem, NULL, &attention, &message), message)) return 1;
  if (failed(scoremod_request_queue_create(NULL, &queue, &message), message)) return 1;

  for (int i = 0; i < kRequests; ++i) {
    fill(&requests[i], i);
    const scoremod_forward_args args = args_of(&requests[i], requests[i].o);
    const scoremod_status status =
        scoremod_request_queue_submit_forward(queue, attention, &args, on_reply, &requests[i], &message);
    if (failed(status, message)) return 1;
  }
  if (failed(scoremod_request_queue_drain(queue, &message), message)) return 1; /* all have their replies now */
  scoremod_request_queue_destroy(queue);

  int wrong = 0;
  for (int i = 0; i < kRequests; ++i) {
    wrong += !is_right(attention, &requests[i]);
    printf("request %d: o[0] %g\n", i, requests[i].o[0]);
  }
  scoremod_attention_destroy(attention);
  return wrong;
}
