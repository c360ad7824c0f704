/* A problem with open sizes through the C interface: one compile, sizes with each call, and each mistake by name. */
#include <math.h>

#include "expect.h"

enum { kMostKeys = 6 };

static const char kOpen[] =
    "{\"batch\": null, \"heads_q\": 1, \"seq_q\": 1, \"seq_kv\": null, \"dim_qk\": 1,"
    " \"program\": \"table bias: f32 rank 1; value = score + bias[kv_idx]\","
    " \"operands\": [{\"name\": \"bias\", \"shape\": [null]}]}";

static scoremod_sizes sizes_of(int64_t batch, int64_t keys, const scoremod_operand_sizes* bias) {
  scoremod_sizes sizes = {0};
  sizes.struct_size = sizeof sizes;
  sizes.batch = batch;
  sizes.seq_kv = keys;
  sizes.operands = bias;
  sizes.operand_count = 1;
  return sizes;
}

/* All scores are 0 and the bias is log(j + 1): the weights are 1, 2, ... and the values their numbers. */
static double call_at(const scoremod_attention* attention, int keys) {
  float q = 0, o = 0, zeros[kMostKeys] = {0}, values[kMostKeys], bias[kMostKeys];
  for (int j = 0; j < keys; ++j) {
    values[j] = (float)j;
    bias[j] = (float)log(j + 1.0);
  }
  const scoremod_operand operand = {"bias", {bias, (size_t)keys * sizeof *bias}};
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = (scoremod_const_buffer){&q, sizeof q};
  args.k = (scoremod_const_buffer){zeros, (size_t)keys * sizeof *zeros};
  args.v = (scoremod_const_buffer){values, (size_t)keys * sizeof *values};
  args.operands = &operand;
  args.operand_count = 1;
  args.o = (scoremod_buffer){&o, sizeof o};
  char* message = NULL;
  const scoremod_status status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_OK(status, message);
  return (double)o;
}

static double expected(int keys) {
  double weights = 0, sum = 0;
  for (int j = 0; j < keys; ++j) {
    weights += j + 1;
    sum += (j + 1.0) * j;
  }
  return sum / weights;
}

static void each_size_is_right(const scoremod_attention* open) {
  for (int keys = 1; keys <= kMostKeys; ++keys) {
    const int64_t extent = keys;
    const scoremod_operand_sizes bias = {"bias", 1, &extent, NULL};
    const scoremod_sizes sizes = sizes_of(1, keys, &bias);
    scoremod_attention* attention = NULL;
    char* message = NULL;
    const scoremod_status status = scoremod_attention_at(open, &sizes, &attention, &message);
    EXPECT_OK(status, message);
    EXPECT(fabs(call_at(attention, keys) - expected(keys)) < 1e-5);
    scoremod_attention_destroy(attention);
  }
}

/* Each call brings its sizes, and there is no attention of them. */
static void each_size_is_right_in_one_call(const scoremod_attention* open) {
  float q = 0, o = 0, zeros[kMostKeys] = {0}, values[kMostKeys], bias[kMostKeys];
  int64_t extent = 0;
  const scoremod_operand_sizes of_bias = {"bias", 1, &extent, NULL};
  scoremod_operand operand = {"bias", {NULL, 0}};
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.operands = &operand;
  args.operand_count = 1;
  scoremod_buffer* const buffers[] = {(scoremod_buffer*)&args.q, (scoremod_buffer*)&args.k, (scoremod_buffer*)&args.v,
                                      (scoremod_buffer*)&operand.buffer, &args.o};
  void* const addresses[] = {&q, zeros, values, bias, &o};
  size_t bytes[] = {sizeof q, 0, 0, 0, sizeof o};
  scoremod_sizes sizes = sizes_of(1, 0, &of_bias);
  scoremod_prepared_call call = {sizeof call, open, &args, NULL, buffers, addresses, bytes, 5, &sizes};
  char* message = NULL;
  for (int keys = 1; keys <= kMostKeys; ++keys) {
    values[keys - 1] = (float)(keys - 1);
    bias[keys - 1] = (float)log(keys);
    sizes.seq_kv = extent = keys;
    bytes[1] = bytes[2] = bytes[3] = (size_t)keys * sizeof *bias;
    const scoremod_status status = scoremod_attention_call(&call, &message);
    EXPECT_OK(status, message);
    EXPECT(fabs((double)o - expected(keys)) < 1e-5);
  }
  bytes[2] -= 1;
  EXPECT_FAILS(scoremod_attention_call(&call, &message), SCOREMOD_INVALID_ARGUMENT, message, "'v'");
  sizes.seq_kv = 0;
  EXPECT_FAILS(scoremod_attention_call(&call, &message), SCOREMOD_INVALID_ARGUMENT, message, "sizes.seq_kv");
  call.sizes = NULL;
  EXPECT_FAILS(scoremod_attention_call(&call, &message), SCOREMOD_INVALID_ARGUMENT, message, "leaves sizes open");
}

static void mistakes_have_names(const scoremod_attention* open) {
  const int64_t extent = 3;
  const scoremod_operand_sizes bias = {"bias", 1, &extent, NULL};
  scoremod_attention* attention = NULL;
  char* message = NULL;
  scoremod_sizes sizes = sizes_of(1, 0, &bias);
  scoremod_status status = scoremod_attention_at(open, &sizes, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "sizes.seq_kv: expected a size of at least 1");
  EXPECT(attention == NULL);

  sizes = sizes_of(1, 3, &bias);
  sizes.seq_q = 2;
  status = scoremod_attention_at(open, &sizes, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "sizes.seq_q: expected 1, which the problem fixes");

  const scoremod_operand_sizes unknown = {"slopes", 1, &extent, NULL};
  sizes = sizes_of(1, 3, &unknown);
  status = scoremod_attention_at(open, &sizes, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "expected an operand of the problem, found 'slopes'");

  sizes = sizes_of(1, 3, &bias);
  sizes.struct_size = 0;
  status = scoremod_attention_at(open, &sizes, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "scoremod_sizes.struct_size");

  status = scoremod_attention_at(open, NULL, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "sizes");

  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  status = scoremod_attention_forward(open, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "scoremod_attention_at gives that of a call's sizes");
  size_t bytes = 0;
  status = scoremod_attention_forward_workspace_bytes(open, &bytes, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "scoremod_attention_at gives that of a call's sizes");
}

static void a_fixed_one_has_no_other_sizes(void) {
  scoremod_attention *fixed = NULL, *attention = NULL;
  char* message = NULL;
  scoremod_status status =
      scoremod_attention_get("{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 1, \"dim_qk\": 1}", NULL, &fixed, &message);
  EXPECT_OK(status, message);
  const scoremod_sizes sizes = sizes_of(1, 1, NULL);
  status = scoremod_attention_at(fixed, &sizes, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "found one of fixed sizes");
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  const scoremod_prepared_call call = {sizeof call, fixed, &args, NULL, NULL, NULL, NULL, 0, &sizes};
  EXPECT_FAILS(scoremod_attention_call(&call, &message), SCOREMOD_INVALID_ARGUMENT, message,
               "found one of fixed sizes");
  scoremod_attention_destroy(fixed);
}

int main(void) {
  scoremod_attention* open = NULL;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_create(kOpen, NULL, &open, &message);
  EXPECT_OK(status, message);
  each_size_is_right(open);
  each_size_is_right_in_one_call(open);
  mistakes_have_names(open);
  a_fixed_one_has_no_other_sizes();

  char* problem = NULL;
  EXPECT_OK(scoremod_attention_problem(open, &problem, &message), message);
  EXPECT(problem != NULL && strstr(problem, "\"batch\": null") != NULL);
  scoremod_text_free(problem);
  scoremod_attention_destroy(open);
  return failure_count > 0;
}
