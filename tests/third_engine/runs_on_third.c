/* Runs a problem through the C interface of the library with one more engine, and expects that engine. */
#include <stdio.h>
#include <string.h>

#include "scoremod/c_api.h"

static const char kProblem[] =
    "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 2, \"seq_kv\": 2, \"dim_qk\": 1, \"program\": \"value = score; keep = "
    "kv_idx <= q_idx\"}";

int main(void) {
  scoremod_attention* attention = NULL;
  char* message = NULL;
  const char* backend = NULL;
  const float ones[2] = {1.0F, 1.0F}, v[2] = {3.0F, 5.0F};
  float o[2] = {0.0F, 0.0F};
  scoremod_forward_args args;
  if (scoremod_attention_create(kProblem, NULL, &attention, &message) != SCOREMOD_OK) {
    printf("%s\n", message);
    return 1;
  }
  scoremod_attention_backend(attention, &backend, NULL);
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.q.data = args.k.data = ones;
  args.v.data = v;
  args.o.data = o;
  args.q.bytes = args.k.bytes = args.v.bytes = args.o.bytes = sizeof o;
  if (scoremod_attention_forward(attention, &args, &message) != SCOREMOD_OK) {
    printf("%s\n", message);
    return 1;
  }
  printf("%s %g %g\n", backend, (double)o[0], (double)o[1]);
  scoremod_attention_destroy(attention);
  return 0;
}
