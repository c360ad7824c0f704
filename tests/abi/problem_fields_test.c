/* Lengths, a learned sink, dropout, the largest score and FP8 tensors through the C interface, and a client that was
 * compiled before the last two. */
#include <math.h>
#include <stddef.h>

#include "expect.h"

enum { kQueries = 2, kKeys = 5 };

/* All scores are 0 and all values 1: with n keys and sink s every output is n / (n + exp(s)). */
static const char kProblem[] =
    "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 2, \"seq_kv\": 5, \"dim_qk\": 1, \"lengths\": {\"kv\": true},"
    " \"sink\": \"learned\", \"dropout\": %s, \"max_logit\": %s, \"backward\": true}";

static const float kZeros[kKeys] = {0};
static const float kOnes[kKeys] = {1, 1, 1, 1, 1};

typedef struct {
  scoremod_attention* attention;
  int32_t length;
  float sink, d_sink;
  float o[kQueries], lse[kQueries], max_logit[kQueries], dq[kQueries], dk[kKeys], dv[kKeys];
  scoremod_operand operands[2];
  scoremod_operand_gradient gradient;
} Fixture;

static void set_up(Fixture* f, const char* dropout, const char* max_logit) {
  f->length = 3;
  f->sink = 1.5F;
  f->operands[0] = (scoremod_operand){"sink", {&f->sink, sizeof f->sink}};
  f->operands[1] = (scoremod_operand){"lengths_kv", {&f->length, sizeof f->length}};
  f->gradient = (scoremod_operand_gradient){"sink", {&f->d_sink, sizeof f->d_sink}};
  char problem[512];
  snprintf(problem, sizeof problem, kProblem, dropout, max_logit);
  char* message = NULL;
  const scoremod_status status = scoremod_attention_create(problem, NULL, &f->attention, &message);
  EXPECT_OK(status, message);
}

static scoremod_forward_args forward_args(Fixture* f) {
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = (scoremod_const_buffer){kZeros, kQueries * sizeof(float)};
  args.k = (scoremod_const_buffer){kZeros, sizeof kZeros};
  args.v = (scoremod_const_buffer){kOnes, sizeof kOnes};
  args.operands = f->operands;
  args.operand_count = 2;
  args.o = (scoremod_buffer){f->o, sizeof f->o};
  args.lse = (scoremod_buffer){f->lse, sizeof f->lse};
  return args;
}

static void backward(Fixture* f, const scoremod_call_options* options) {
  scoremod_backward_args args = {0};
  args.struct_size = sizeof args;
  args.q = (scoremod_const_buffer){kZeros, kQueries * sizeof(float)};
  args.k = (scoremod_const_buffer){kZeros, sizeof kZeros};
  args.v = (scoremod_const_buffer){kOnes, sizeof kOnes};
  args.o = (scoremod_const_buffer){f->o, sizeof f->o};
  args.lse = (scoremod_const_buffer){f->lse, sizeof f->lse};
  args.d_o = (scoremod_const_buffer){kOnes, kQueries * sizeof(float)};
  args.operands = f->operands;
  args.operand_count = 2;
  args.dq = (scoremod_buffer){f->dq, sizeof f->dq};
  args.dk = (scoremod_buffer){f->dk, sizeof f->dk};
  args.dv = (scoremod_buffer){f->dv, sizeof f->dv};
  args.d_operands = &f->gradient;
  args.d_operand_count = 1;
  args.options = options;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_backward(f->attention, &args, &message);
  EXPECT_OK(status, message);
}

static void test_lengths_and_sink(void) {
  Fixture f;
  set_up(&f, "0", "true");
  scoremod_forward_args args = forward_args(&f);
  args.max_logit = (scoremod_buffer){f.max_logit, sizeof f.max_logit};
  char* message = NULL;
  scoremod_status status = scoremod_attention_forward(f.attention, &args, &message);
  EXPECT_OK(status, message);
  const double total = 3 + exp(1.5), o = 3 / total;
  for (int i = 0; i < kQueries; ++i) {
    EXPECT(fabs((double)f.o[i] - o) < 1e-6);
    EXPECT(fabs((double)f.lse[i] - log(total)) < 1e-6);
    EXPECT(f.max_logit[i] == 0);
  }
  backward(&f, NULL);
  EXPECT(fabs((double)f.d_sink + kQueries * o * exp(1.5) / total) < 1e-6);
  for (int j = 0; j < kKeys; ++j) EXPECT(fabs((double)f.dv[j] - (j < 3 ? kQueries / total : 0)) < 1e-6);

  f.length = 6;
  status = scoremod_attention_forward(f.attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "'lengths_kv': expected lengths from 0 to 5");
  f.length = 3;
  args.max_logit.data = NULL;
  status = scoremod_attention_forward(f.attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "'max_logit' is missing");
  scoremod_attention_destroy(f.attention);
}

/* Each output is m / 0.5 / (3 + exp(s)) for the number m of keys that are left, and the backward has the same m. */
static void test_dropout(void) {
  Fixture f;
  set_up(&f, "0.5", "false");
  scoremod_forward_args args = forward_args(&f);
  scoremod_call_options options = {0};
  options.struct_size = sizeof options;
  args.options = &options;
  const double total = 3 + exp(1.5);
  char* message = NULL;
  double left_of_all = 0;
  int changes = 0;
  float last = -1;
  for (options.dropout_seed = 1; options.dropout_seed <= 40; ++options.dropout_seed) {
    options.dropout_offset = options.dropout_seed << 40;
    const scoremod_status status = scoremod_attention_forward(f.attention, &args, &message);
    EXPECT_OK(status, message);
    backward(&f, &options);
    double left = 0, dv = 0;
    for (int i = 0; i < kQueries; ++i) left += (double)f.o[i] * total / 2;
    for (int j = 0; j < kKeys; ++j) dv += (double)f.dv[j] * total / 2;
    EXPECT(fabs(left - round(left)) < 1e-5);
    EXPECT(fabs(left - dv) < 1e-5);
    left_of_all += left;
    changes += f.o[0] != last;
    last = f.o[0];
  }
  /* 240 weights with probability 1 / 2 are within 6 standard deviations. */
  EXPECT(fabs(left_of_all - 120) < 47);
  EXPECT(changes > 5);
  scoremod_attention_destroy(f.attention);
}

/* One key, so that o is v: 1.5 times the factor 2, and 3 times 16 as E4M3 has it. */
static void test_float8(void) {
  scoremod_attention* attention = NULL;
  char* message = NULL;
  scoremod_status status = scoremod_attention_create(
      "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 1, \"dim_qk\": 1, \"dtype\": \"e4m3\", \"amax_o\": true}", NULL,
      &attention, &message);
  EXPECT_OK(status, message);
  const uint8_t zero = 0, one_and_a_half = 0x3c;
  const float one = 1, two = 2, sixteen = 16;
  uint8_t o = 0xff;
  float amax = -1;
  const scoremod_operand operands[] = {{"descale_q", {&one, sizeof one}},
                                       {"descale_k", {&one, sizeof one}},
                                       {"descale_v", {&two, sizeof two}},
                                       {"scale_o", {&sixteen, sizeof sixteen}}};
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = args.k = (scoremod_const_buffer){&zero, 1};
  args.v = (scoremod_const_buffer){&one_and_a_half, 1};
  args.o = (scoremod_buffer){&o, 1};
  args.amax_o = (scoremod_buffer){&amax, sizeof amax};
  args.operands = operands;
  args.operand_count = 4;
  status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_OK(status, message);
  EXPECT(o == 0x64);
  EXPECT(amax == 3);
  /* A client that was compiled before the buffer: it has none. */
  args.struct_size = offsetof(scoremod_forward_args, amax_o);
  status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "'amax_o' is missing");
  args.struct_size = sizeof args;
  args.operand_count = 3;
  status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "operand 'scale_o' is missing");
  scoremod_attention_destroy(attention);
}

/* One key: o is v, dv is d_o, and dq and dk are 0, since the weight does not move. */
static void test_amax_of_gradients(void) {
  scoremod_attention* attention = NULL;
  char* message = NULL;
  scoremod_status status = scoremod_attention_create(
      "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 1, \"dim_qk\": 1, \"dtype\": \"e4m3\", \"dtype_o\": \"f32\","
      " \"amax_gradients\": true, \"backward\": true}",
      NULL, &attention, &message);
  EXPECT_OK(status, message);
  const uint8_t zero = 0;
  /* bf16 rounds it to 1. */
  const float one = 1, o = 0, lse = 0, d_o = -1.001953125F;
  uint16_t gradients[3] = {0xffff, 0xffff, 0xffff};
  float amax[3] = {-1, -1, -1};
  const scoremod_operand operands[] = {
      {"descale_q", {&one, sizeof one}}, {"descale_k", {&one, sizeof one}}, {"descale_v", {&one, sizeof one}}};
  scoremod_backward_args args = {0};
  args.struct_size = sizeof args;
  args.q = args.k = args.v = (scoremod_const_buffer){&zero, 1};
  args.o = (scoremod_const_buffer){&o, sizeof o};
  args.lse = (scoremod_const_buffer){&lse, sizeof lse};
  args.d_o = (scoremod_const_buffer){&d_o, sizeof d_o};
  args.dq = (scoremod_buffer){&gradients[0], 2};
  args.dk = (scoremod_buffer){&gradients[1], 2};
  args.dv = (scoremod_buffer){&gradients[2], 2};
  args.amax_dq = (scoremod_buffer){&amax[0], sizeof *amax};
  args.amax_dk = (scoremod_buffer){&amax[1], sizeof *amax};
  args.amax_dv = (scoremod_buffer){&amax[2], sizeof *amax};
  args.operands = operands;
  args.operand_count = 3;
  status = scoremod_attention_backward(attention, &args, &message);
  EXPECT_OK(status, message);
  EXPECT(gradients[2] == 0xbf80);
  EXPECT(amax[0] == 0 && amax[1] == 0 && amax[2] == -d_o);
  /* A client that was compiled before the buffers: it has none. */
  args.struct_size = offsetof(scoremod_backward_args, amax_dq);
  status = scoremod_attention_backward(attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "'amax_dq' is missing");
  scoremod_attention_destroy(attention);
}

/* FP8 values of two KV heads under f32 queries: o is v, 1.5 times the scale of its head. */
static void test_float8_cache(void) {
  scoremod_attention* attention = NULL;
  char* message = NULL;
  scoremod_status status = scoremod_attention_create(
      "{\"batch\": 1, \"heads_q\": 2, \"seq_q\": 1, \"dim_qk\": 1, \"dtype_kv\": \"e4m3\", "
      "\"operands\": [{\"name\": \"descale_v\", \"shape\": [2]}]}",
      NULL, &attention, &message);
  EXPECT_OK(status, message);
  const uint8_t values[] = {0x3c, 0x3c};
  const float queries[] = {0, 0}, one = 1, scales[] = {2, 4};
  float o[] = {-1, -1};
  const scoremod_operand operands[] = {{"descale_k", {&one, sizeof one}}, {"descale_v", {scales, sizeof scales}}};
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = (scoremod_const_buffer){queries, sizeof queries};
  args.k = args.v = (scoremod_const_buffer){values, sizeof values};
  args.o = (scoremod_buffer){o, sizeof o};
  args.operands = operands;
  args.operand_count = 2;
  status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_OK(status, message);
  EXPECT(o[0] == 3 && o[1] == 6);
  args.operand_count = 1;
  status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "operand 'descale_v' is missing");
  scoremod_attention_destroy(attention);
}

/* The structs as they were before their last fields. */
static void test_older_client(void) {
  Fixture f;
  set_up(&f, "0", "false");
  scoremod_forward_args args = forward_args(&f);
  args.struct_size = offsetof(scoremod_forward_args, max_logit);
  args.max_logit = (scoremod_buffer){f.max_logit, 1}; /* beyond the end: must not be read */
  scoremod_call_options options = {0};
  options.struct_size = offsetof(scoremod_call_options, dropout_seed);
  args.options = &options;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_forward(f.attention, &args, &message);
  EXPECT_OK(status, message);
  EXPECT(fabs((double)f.o[0] - 3 / (3 + exp(1.5))) < 1e-6);
  scoremod_attention_destroy(f.attention);
}

int main(void) {
  test_lengths_and_sink();
  test_dropout();
  test_float8();
  test_amax_of_gradients();
  test_float8_cache();
  test_older_client();
  return failure_count > 0;
}
