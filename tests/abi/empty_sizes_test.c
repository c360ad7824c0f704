/* Sizes of 0 through the C interface: calls return at once, write rows without a key, and touch nothing else. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "expect.h"

enum { kHeads = 2, kQueries = 3, kDim = 2, kElements = kHeads * kQueries * kDim, kRows = kHeads * kQueries };

static const char kProblem[] =
    "{\"batch\": %s, \"heads_q\": %s, \"seq_q\": %s, \"seq_kv\": %s, \"dim_qk\": 2, \"q\": \"BHSD\", \"k\": \"BHSD\","
    " \"v\": \"BHSD\", \"o\": \"BHSD\", \"program\": \"operand slopes: f32 [h]\\nvalue = score * slopes\","
    " \"sink\": \"%s\", \"stats\": true, \"max_logit\": true, \"backward\": true}";

typedef struct {
  const char *batch, *heads, *seq_q, *seq_kv, *sink;
} Sizes;

static scoremod_status make(Sizes sizes, scoremod_attention** attention, char** message) {
  char text[640];
  snprintf(text, sizeof text, kProblem, sizes.batch, sizes.heads, sizes.seq_q, sizes.seq_kv, sizes.sink);
  return scoremod_attention_create(text, NULL, attention, message);
}

/* Outputs of calls of kHeads heads, kQueries queries and no keys. A guard follows each. */
typedef struct {
  float o[kElements + 1], dq[kElements + 1], lse[kRows + 1], max_logit[kRows + 1];
  float slopes[kHeads], d_slopes[kHeads + 1], sink[kHeads], d_sink[kHeads + 1];
} Tensors;

static void fill(float* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = 7;
}

static Tensors tensors_of_sevens(void) {
  Tensors t = {0};
  fill(t.o, kElements + 1);
  fill(t.dq, kElements + 1);
  fill(t.lse, kRows + 1);
  fill(t.max_logit, kRows + 1);
  fill(t.slopes, kHeads);
  fill(t.d_slopes, kHeads + 1);
  fill(t.d_sink, kHeads + 1);
  t.sink[0] = 1.5F;
  t.sink[1] = -2;
  return t;
}

/* That `count` values are `wanted`, and the next one is as it was. */
static void expect_filled(const float* values, int count, float wanted) {
  for (int i = 0; i < count; ++i) EXPECT(values[i] == wanted);
  EXPECT(values[count] == 7);
}

static void forward(const scoremod_attention* attention, Tensors* t, int elements, int with_sink) {
  static const float kQ[kElements] = {0};
  const size_t bytes = (size_t)elements * sizeof(float), rows = bytes / kDim;
  const scoremod_operand operands[] = {{"slopes", {t->slopes, sizeof t->slopes}}, {"sink", {t->sink, sizeof t->sink}}};
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  if (elements > 0) {
    args.q = (scoremod_const_buffer){kQ, bytes};
    args.o = (scoremod_buffer){t->o, bytes};
    args.lse = (scoremod_buffer){t->lse, rows};
    args.max_logit = (scoremod_buffer){t->max_logit, rows};
  }
  args.operands = operands;
  args.operand_count = with_sink ? 2 : 1;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_OK(status, message);
}

static void backward(const scoremod_attention* attention, Tensors* t, int elements, int with_sink) {
  static const float kQ[kElements] = {0};
  const size_t bytes = (size_t)elements * sizeof(float), rows = bytes / kDim;
  const scoremod_operand operands[] = {{"slopes", {t->slopes, sizeof t->slopes}}, {"sink", {t->sink, sizeof t->sink}}};
  const scoremod_operand_gradient gradients[] = {{"slopes", {t->d_slopes, kHeads * sizeof(float)}},
                                                 {"sink", {t->d_sink, kHeads * sizeof(float)}}};
  scoremod_backward_args args = {0};
  args.struct_size = sizeof args;
  if (elements > 0) {
    args.q = args.d_o = (scoremod_const_buffer){kQ, bytes};
    args.o = (scoremod_const_buffer){t->o, bytes};
    args.lse = (scoremod_const_buffer){t->lse, rows};
    args.dq = (scoremod_buffer){t->dq, bytes};
  }
  args.operands = operands;
  args.d_operands = gradients;
  args.operand_count = args.d_operand_count = with_sink ? 2 : 1;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_backward(attention, &args, &message);
  EXPECT_OK(status, message);
}

static void calls_without_rows_touch_nothing_but_gradients_of_operands(void) {
  const Sizes all[] = {{"0", "2", "3", "5", "none"}, {"1", "2", "0", "0", "none"}, {"0", "2", "0", "0", "learned"}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    scoremod_attention* attention = NULL;
    char* message = NULL;
    EXPECT_OK(make(all[i], &attention, &message), message);
    size_t bytes = 1;
    EXPECT_OK(scoremod_attention_forward_workspace_bytes(attention, &bytes, &message), message);
    EXPECT(bytes == 0);
    EXPECT_OK(scoremod_attention_backward_workspace_bytes(attention, &bytes, &message), message);
    EXPECT(bytes == 0);
    Tensors t = tensors_of_sevens();
    const int with_sink = strcmp(all[i].sink, "learned") == 0;
    forward(attention, &t, 0, with_sink);
    backward(attention, &t, 0, with_sink);
    expect_filled(t.o, 0, 0);
    expect_filled(t.d_slopes, kHeads, 0);
    if (with_sink) expect_filled(t.d_sink, kHeads, 0);
    scoremod_attention_destroy(attention);
  }
}

static void rows_without_keys_are_written(void) {
  const char* sinks[] = {"none", "off_by_one", "learned"};
  for (int i = 0; i < 3; ++i) {
    scoremod_attention* attention = NULL;
    char* message = NULL;
    EXPECT_OK(make((Sizes){"1", "2", "3", "0", sinks[i]}, &attention, &message), message);
    Tensors t = tensors_of_sevens();
    const int with_sink = i == 2;
    forward(attention, &t, kElements, with_sink);
    expect_filled(t.o, kElements, 0);
    expect_filled(t.max_logit, kRows, -INFINITY);
    for (int row = 0; row < kRows; ++row)
      EXPECT(t.lse[row] == (i == 0 ? -INFINITY : i == 1 ? 0 : t.sink[row / kQueries]));
    EXPECT(t.lse[kRows] == 7);
    backward(attention, &t, kElements, with_sink);
    expect_filled(t.dq, kElements, 0);
    expect_filled(t.d_slopes, kHeads, 0);
    if (with_sink) expect_filled(t.d_sink, kHeads, 0);
    scoremod_attention_destroy(attention);
  }
}

static void arguments_are_held_to_the_sizes(void) {
  scoremod_attention* attention = NULL;
  char* message = NULL;
  EXPECT_OK(make((Sizes){"1", "2", "3", "0", "none"}, &attention, &message), message);
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  scoremod_status status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "operand 'slopes' is missing");
  Tensors t = tensors_of_sevens();
  const scoremod_operand operand = {"slopes", {t.slopes, sizeof t.slopes}};
  args.operands = &operand;
  args.operand_count = 1;
  status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "'q' is missing");
  scoremod_attention_destroy(attention);
}

static void other_sizes_are_refused(void) {
  const struct {
    Sizes sizes;
    const char* part;
  } all[] = {{{"-1", "2", "3", "5", "none"}, "batch: expected a size from 1"},
             {{"-2", "2", "3", "0", "none"}, "batch: expected a size from 1"},
             {{"0", "2", "-4", "5", "none"}, "seq_q: expected a size from 1"},
             {{"1", "0, \"heads_kv\": 2", "3", "5", "none"}, "heads_q: expected a size from 1"},
             {{"0, \"tokens_q\": 4", "2", "3", "5", "none"}, "batch: expected a size from 1"}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    scoremod_attention* attention = NULL;
    char* message = NULL;
    const scoremod_status status = make(all[i].sizes, &attention, &message);
    EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, all[i].part);
    EXPECT(attention == NULL);
  }
}

static void open_sizes_may_be_0(void) {
  scoremod_attention *open = NULL, *attention = NULL;
  char *message = NULL, *problem = NULL;
  EXPECT_OK(make((Sizes){"null", "2", "null", "null", "none"}, &open, &message), message);
  scoremod_sizes sizes = {0};
  sizes.struct_size = sizeof sizes;
  sizes.seq_q = kQueries;
  sizes.batch = 1;
  scoremod_status status = scoremod_attention_at(open, &sizes, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "sizes.seq_kv: expected a size of at least 1");
  sizes.takes_zeros = 1;
  EXPECT_OK(scoremod_attention_at(open, &sizes, &attention, &message), message);
  EXPECT_OK(scoremod_attention_problem(attention, &problem, &message), message);
  EXPECT(problem != NULL && strstr(problem, "\"seq_kv\": 0") != NULL);
  scoremod_text_free(problem);
  Tensors t = tensors_of_sevens();
  forward(attention, &t, kElements, 0);
  expect_filled(t.o, kElements, 0);
  expect_filled(t.lse, kRows, -INFINITY);
  scoremod_attention_destroy(attention);
  for (sizes.batch = -2; sizes.batch < 0; ++sizes.batch) {
    status = scoremod_attention_at(open, &sizes, &attention, &message);
    EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "batch: expected a size from 1");
  }
  EXPECT(sizes.batch == 0);
  sizes.seq_kv = 5;
  EXPECT_OK(scoremod_attention_at(open, &sizes, &attention, &message), message);
  t = tensors_of_sevens();
  forward(attention, &t, 0, 0);
  expect_filled(t.o, 0, 0);
  scoremod_attention_destroy(attention);
  scoremod_attention_destroy(open);
}

int main(void) {
  calls_without_rows_touch_nothing_but_gradients_of_operands();
  rows_without_keys_are_written();
  arguments_are_held_to_the_sizes();
  other_sizes_are_refused();
  open_sizes_may_be_0();
  return failure_count > 0;
}
