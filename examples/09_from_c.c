/* Attention from C99, and from every language that calls C: one header, a problem as JSON text, and buffers with their
 * sizes. Here the 4 heads have slopes by which scores fall with distance (ALiBi), and the slopes are learned. */
#include <stdio.h>
#include <stdlib.h>

#include <scoremod/c_api.h>

enum { kHeads = 4, kQueries = 64, kDim = 16, kElements = kHeads * kQueries * kDim, kRows = kHeads * kQueries };

static const char kProblem[] =
    "{\"batch\": 1, \"heads_q\": 4, \"seq_q\": 64, \"dim_qk\": 16, \"backward\": true,"
    " \"program\": [\"operand slopes: f32 [h]\","
    "               \"value = score - slopes * f32(q_idx - kv_idx)\","
    "               \"keep = q_idx >= kv_idx\"]}";

static float q[kElements], k[kElements], v[kElements], o[kElements], lse[kRows];
static float d_o[kElements], dq[kElements], dk[kElements], dv[kElements];
static float slopes[kHeads] = {0.5f, 0.25f, 0.125f, 0.0625f};
static float d_slopes[kHeads];

static scoremod_const_buffer reads(const float* data, size_t count) {
  const scoremod_const_buffer buffer = {data, count * sizeof *data};
  return buffer;
}

static scoremod_buffer writes(float* data, size_t count) {
  const scoremod_buffer buffer = {data, count * sizeof *data};
  return buffer;
}

static scoremod_status forward(const scoremod_attention* attention, const scoremod_operand* operand, char** message) {
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = reads(q, kElements);
  args.k = reads(k, kElements);
  args.v = reads(v, kElements);
  args.operands = operand;
  args.operand_count = 1;
  args.o = writes(o, kElements);
  args.lse = writes(lse, kRows);
  return scoremod_attention_forward(attention, &args, message);
}

static scoremod_status backward(const scoremod_attention* attention, const scoremod_operand* operand, char** message) {
  const scoremod_operand_gradient gradient = {"slopes", writes(d_slopes, kHeads)};
  scoremod_backward_args args = {0};
  args.struct_size = sizeof args;
  args.q = reads(q, kElements);
  args.k = reads(k, kElements);
  args.v = reads(v, kElements);
  args.o = reads(o, kElements);
  args.lse = reads(lse, kRows);
  args.d_o = reads(d_o, kElements);
  args.operands = operand;
  args.operand_count = 1;
  args.dq = writes(dq, kElements);
  args.dk = writes(dk, kElements);
  args.dv = writes(dv, kElements);
  args.d_operands = &gradient;
  args.d_operand_count = 1;
  return scoremod_attention_backward(attention, &args, message);
}

int main(void) {
  for (int i = 0; i < kElements; ++i) {
    q[i] = (float)(i * 37 % 101) / 50 - 1;
    k[i] = (float)(i * 53 % 103) / 50 - 1;
    v[i] = (float)(i * 71 % 107) / 50 - 1;
    d_o[i] = 1;
  }
  scoremod_attention* attention = NULL;
  char* message = NULL;
  const scoremod_operand operand = {"slopes", reads(slopes, kHeads)};
  scoremod_status status = scoremod_attention_create(kProblem, NULL, &attention, &message);
  if (status == SCOREMOD_OK) status = forward(attention, &operand, &message);
  if (status == SCOREMOD_OK) status = backward(attention, &operand, &message);
  if (status == SCOREMOD_OK) {
    /* The first query sees the first key only, so that its output is that key's value. */
    printf("o[0] %g, v[0] %g\nd_slopes", o[0], v[0]);
    for (int head = 0; head < kHeads; ++head) printf(" %g", d_slopes[head]);
    printf("\n");
    if (o[0] != v[0]) status = SCOREMOD_BUG;
  } else {
    fprintf(stderr, "%s: %s\n", scoremod_status_name(status), message != NULL ? message : "out of memory");
  }
  scoremod_text_free(message);
  scoremod_attention_destroy(attention);
  return status == SCOREMOD_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
