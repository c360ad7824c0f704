/* Computes a small attention through the C interface and compares it with values computed here, forward and backward.
 */
#include <math.h>
#include <stdlib.h>

#include "expect.h"

enum { kQueries = 3, kKeys = 4, kDim = 2 };

/* One head; a key beyond `length` is masked, and each score is multiplied by `gain`. */
static const char kProblem[] =
    "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 3, \"seq_kv\": 4, \"dim_qk\": 2, \"scale\": 0.5, \"backward\": true,"
    "\"index_offsets\": true,"
    " \"program\": \"operand gain: f32 []; operand length: i32 [b]; value = score * gain; keep = kv_idx < length\"}";

static const float kQ[kQueries * kDim] = {1.0F, 0.5F, -1.0F, 2.0F, 0.25F, -0.75F};
static const float kK[kKeys * kDim] = {0.5F, 1.0F, -0.5F, 0.25F, 1.5F, -1.0F, 9.0F, 9.0F};
static const float kV[kKeys * kDim] = {1.0F, 2.0F, 3.0F, -1.0F, 0.5F, 0.0F, 9.0F, 9.0F};
static const float kUpstream[kQueries * kDim] = {1.0F, 0.0F, 0.5F, -1.0F, 2.0F, 1.0F};

typedef struct {
  double o[kQueries * kDim], lse[kQueries], loss;
} Expected;

/* The definition, in double: O, LSE, and the loss sum(O * upstream). */
static Expected evaluate(const double* q, const double* k, const double* v, double gain, int length) {
  Expected made;
  made.loss = 0;
  for (int i = 0; i < kQueries; ++i) {
    double weights[kKeys];
    double sum = 0;
    for (int j = 0; j < length; ++j) {
      double dot = 0;
      for (int d = 0; d < kDim; ++d) dot += q[i * kDim + d] * k[j * kDim + d];
      weights[j] = exp(0.5 * dot * gain);
      sum += weights[j];
    }
    made.lse[i] = log(sum);
    for (int d = 0; d < kDim; ++d) {
      double value = 0;
      for (int j = 0; j < length; ++j) value += weights[j] / sum * v[j * kDim + d];
      made.o[i * kDim + d] = value;
      made.loss += value * (double)kUpstream[i * kDim + d];
    }
  }
  return made;
}

static void widen(const float* from, double* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = (double)from[i];
}

/* The state that tests share: the inputs in double, an attention, and its operands. */
typedef struct {
  double q[kQueries * kDim], k[kKeys * kDim], v[kKeys * kDim];
  scoremod_attention* attention;
  float gain;
  int32_t length;
  scoremod_operand operands[2];
} Fixture;

static void set_up(Fixture* f) {
  widen(kQ, f->q, kQueries * kDim);
  widen(kK, f->k, kKeys * kDim);
  widen(kV, f->v, kKeys * kDim);
  f->gain = 1.5F;
  f->length = 3;
  f->operands[0] = (scoremod_operand){"gain", {&f->gain, sizeof f->gain}};
  f->operands[1] = (scoremod_operand){"length", {&f->length, sizeof f->length}};
  char* message = NULL;
  const scoremod_status status = scoremod_attention_create(kProblem, NULL, &f->attention, &message);
  EXPECT_OK(status, message);
}

static scoremod_forward_args forward_args(const Fixture* f, float* o, float* lse) {
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = (scoremod_const_buffer){kQ, sizeof kQ};
  args.k = (scoremod_const_buffer){kK, sizeof kK};
  args.v = (scoremod_const_buffer){kV, sizeof kV};
  args.operands = f->operands;
  args.operand_count = 2;
  args.o = (scoremod_buffer){o, kQueries * kDim * sizeof(float)};
  args.lse = (scoremod_buffer){lse, kQueries * sizeof(float)};
  return args;
}

static void run_forward(const Fixture* f, float* o, float* lse) {
  const scoremod_forward_args args = forward_args(f, o, lse);
  char* message = NULL;
  const scoremod_status status = scoremod_attention_forward(f->attention, &args, &message);
  EXPECT_OK(status, message);
}

static void test_queries(const Fixture* f) {
  EXPECT(strchr(scoremod_version(), '.') != NULL);
  char* message = NULL;
  const char* backend = NULL;
  scoremod_status status = scoremod_attention_backend(f->attention, &backend, &message);
  EXPECT_OK(status, message);
  EXPECT(backend != NULL && (strcmp(backend, "cpu") == 0 || strcmp(backend, "reference") == 0));

  char* problem = NULL;
  status = scoremod_attention_problem(f->attention, &problem, &message);
  EXPECT_OK(status, message);
  EXPECT(problem != NULL && strstr(problem, "\"heads_kv\": 1") != NULL);

  char* answers = NULL;
  status = scoremod_support(problem, NULL, &answers, &message);
  EXPECT_OK(status, message);
  EXPECT(answers != NULL && strstr(answers, "{\"backend\":\"reference\",\"supported\":true,\"reasons\":[],") != NULL);
  scoremod_text_free(answers);

  /* For a device that is not here: its backends' answers have nothing of this machine's. */
  scoremod_compile_options options = {0};
  options.struct_size = sizeof options;
  options.support_level = 1;
  options.device_properties =
      "{\"deviceVer\": 900, \"multiProcessorCount\": 132, \"maxSharedMemoryPerBlockOptin\": 232448,"
      " \"deviceName\": \"A GPU\", \"l2CacheSize\": 62914560}";
  status = scoremod_support(problem, &options, &answers, &message);
  EXPECT_OK(status, message);
  EXPECT(answers != NULL && strstr(answers, "no_device") == NULL);
  EXPECT(answers != NULL && strstr(answers, "{\"backend\":\"reference\",\"supported\":true") != NULL);
  scoremod_text_free(answers);

  char* explanation = NULL;
  status = scoremod_explain(problem, NULL, &explanation, &message);
  EXPECT_OK(status, message);
  EXPECT(explanation != NULL && strstr(explanation, "\"derivative\"") != NULL);
  scoremod_text_free(explanation);
  scoremod_text_free(problem);
}

static void test_forward(const Fixture* f) {
  float o[kQueries * kDim];
  float lse[kQueries];
  run_forward(f, o, lse);
  const Expected expected = evaluate(f->q, f->k, f->v, 1.5, 3);
  for (int i = 0; i < kQueries * kDim; ++i) EXPECT(fabs((double)o[i] - expected.o[i]) < 1e-6);
  for (int i = 0; i < kQueries; ++i) EXPECT(fabs((double)lse[i] - expected.lse[i]) < 1e-6);
}

static void test_workspace_of_the_caller(const Fixture* f) {
  float o[kQueries * kDim];
  float lse[kQueries];
  scoremod_forward_args args = forward_args(f, o, lse);
  char* message = NULL;
  size_t bytes = 0;
  scoremod_status status = scoremod_attention_forward_workspace_bytes(f->attention, &bytes, &message);
  EXPECT_OK(status, message);
  const size_t kAlignment = 64;
  char* memory = malloc(bytes + 2 * kAlignment);
  args.workspace.data = memory + (kAlignment - (uintptr_t)memory % kAlignment);
  args.workspace.bytes = bytes;
  status = scoremod_attention_forward(f->attention, &args, &message);
  EXPECT_OK(status, message);
  const Expected expected = evaluate(f->q, f->k, f->v, 1.5, 3);
  EXPECT(fabs((double)o[0] - expected.o[0]) < 1e-6);
  if (bytes > 0) {
    args.workspace.bytes = bytes - 1;
    status = scoremod_attention_forward(f->attention, &args, &message);
    EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "workspace");
  }
  free(memory);
}

static void test_call_options(const Fixture* f) {
  float o[kQueries * kDim];
  float lse[kQueries];
  scoremod_forward_args args = forward_args(f, o, lse);
  scoremod_call_options options = {0};
  options.struct_size = sizeof options;
  options.has_scale = 1;
  options.scale = 0.25F;  /* half of the problem's */
  options.key_offset = 1; /* the first local key is key 1, so one key less is below the length */
  args.options = &options;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_forward(f->attention, &args, &message);
  EXPECT_OK(status, message);
  const Expected expected = evaluate(f->q, f->k, f->v, 0.75, 2);
  for (int i = 0; i < kQueries * kDim; ++i) EXPECT(fabs((double)o[i] - expected.o[i]) < 1e-6);
}

/* (loss(x + h) - loss(x - h)) / 2h for one element of q, k or v. */
static double difference_quotient(const Fixture* f, double* x) {
  const double h = 1e-5;
  const double at = *x;
  *x = at + h;
  const double above = evaluate(f->q, f->k, f->v, 1.5, 3).loss;
  *x = at - h;
  const double below = evaluate(f->q, f->k, f->v, 1.5, 3).loss;
  *x = at;
  return (above - below) / (2 * h);
}

static void test_backward(Fixture* f) {
  float o[kQueries * kDim];
  float lse[kQueries];
  run_forward(f, o, lse);
  float dq[kQueries * kDim];
  float dk[kKeys * kDim];
  float dv[kKeys * kDim];
  float d_gain = -99;
  const scoremod_operand_gradient gradient = {"gain", {&d_gain, sizeof d_gain}};
  scoremod_backward_args args = {0};
  args.struct_size = sizeof args;
  args.q = (scoremod_const_buffer){kQ, sizeof kQ};
  args.k = (scoremod_const_buffer){kK, sizeof kK};
  args.v = (scoremod_const_buffer){kV, sizeof kV};
  args.o = (scoremod_const_buffer){o, sizeof o};
  args.lse = (scoremod_const_buffer){lse, sizeof lse};
  args.d_o = (scoremod_const_buffer){kUpstream, sizeof kUpstream};
  args.operands = f->operands;
  args.operand_count = 2;
  args.dq = (scoremod_buffer){dq, sizeof dq};
  args.dk = (scoremod_buffer){dk, sizeof dk};
  args.dv = (scoremod_buffer){dv, sizeof dv};
  args.d_operands = &gradient;
  args.d_operand_count = 1;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_backward(f->attention, &args, &message);
  EXPECT_OK(status, message);

  for (int i = 0; i < kQueries * kDim; ++i) EXPECT(fabs((double)dq[i] - difference_quotient(f, &f->q[i])) < 1e-5);
  for (int i = 0; i < kKeys * kDim; ++i) EXPECT(fabs((double)dk[i] - difference_quotient(f, &f->k[i])) < 1e-5);
  for (int i = 0; i < kKeys * kDim; ++i) EXPECT(fabs((double)dv[i] - difference_quotient(f, &f->v[i])) < 1e-5);
  const double h = 1e-5;
  const double slope =
      (evaluate(f->q, f->k, f->v, 1.5 + h, 3).loss - evaluate(f->q, f->k, f->v, 1.5 - h, 3).loss) / (2 * h);
  EXPECT(fabs((double)d_gain - slope) < 1e-5);
}

int main(void) {
  Fixture fixture;
  set_up(&fixture);
  if (fixture.attention == NULL) return 1;
  test_queries(&fixture);
  test_forward(&fixture);
  test_workspace_of_the_caller(&fixture);
  test_call_options(&fixture);
  test_backward(&fixture);
  scoremod_attention_destroy(fixture.attention);
  return failure_count > 0;
}
