/* A call whose structs stand ready gets its memory at each call, and its failures name what is missing. */
#include "expect.h"

enum { kRows = 3, kDim = 2, kCount = kRows * kDim };

static const char kProblem[] =
    "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 3, \"seq_kv\": 3, \"dim_qk\": 2, \"program\": \"value = score\"}";
static const float kTensor[kCount] = {1.0F, 0.5F, -1.0F, 2.0F, 0.25F, -0.75F};

int main(void) {
  scoremod_attention* attention = NULL;
  char* message = NULL;
  scoremod_status status = scoremod_attention_create(kProblem, NULL, &attention, &message);
  EXPECT_OK(status, message);
  if (attention == NULL) return 1;

  float expected[kCount];
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = args.k = args.v = (scoremod_const_buffer){kTensor, sizeof kTensor};
  args.o = (scoremod_buffer){expected, sizeof expected};
  status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_OK(status, message);

  float first[kCount];
  float second[kCount];
  scoremod_buffer* const buffers[] = {&args.o};
  void* addresses[] = {first};
  const size_t bytes[] = {sizeof first};
  scoremod_prepared_call call = {sizeof call, attention, &args, NULL, buffers, addresses, bytes, 1, NULL};
  status = scoremod_attention_call(&call, &message);
  EXPECT_OK(status, message);
  addresses[0] = second;
  status = scoremod_attention_call(&call, &message);
  EXPECT_OK(status, message);
  for (int i = 0; i < kCount; ++i) EXPECT(first[i] == expected[i] && second[i] == expected[i]);

  EXPECT_FAILS(scoremod_attention_call(NULL, &message), SCOREMOD_INVALID_ARGUMENT, message, "call");
  call.addresses = NULL;
  EXPECT_FAILS(scoremod_attention_call(&call, &message), SCOREMOD_INVALID_ARGUMENT, message, "call.addresses");
  call.count = 0;
  call.forward = NULL;
  EXPECT_FAILS(scoremod_attention_call(&call, &message), SCOREMOD_INVALID_ARGUMENT, message, "found neither");
  scoremod_attention_destroy(attention);
  return failure_count > 0;
}
