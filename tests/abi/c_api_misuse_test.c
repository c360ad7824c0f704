/* Mistakes of callers: each is a status and a message, never a crash. Also callers with older and newer headers. */
#include <stdlib.h>

#include "expect.h"

static const char kProblem[] =
    "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 2, \"dim_qk\": 2,"
    " \"program\": \"operand gain: f32 []; value = score * gain\"}";

static const float kTensor[4] = {1, 2, 3, 4};
static const float kGain = 1;
static const scoremod_operand kOperand = {"gain", {&kGain, sizeof kGain}};

static scoremod_forward_args forward_args(float* o) {
  scoremod_forward_args args = {0};
  args.struct_size = sizeof args;
  args.q = args.k = args.v = (scoremod_const_buffer){kTensor, sizeof kTensor};
  args.operands = &kOperand;
  args.operand_count = 1;
  args.o = (scoremod_buffer){o, sizeof kTensor};
  return args;
}

static void test_creation(void) {
  scoremod_attention* attention = (scoremod_attention*)&failure_count; /* anything but null: failures must reset it */
  char* message = NULL;
  scoremod_status status = scoremod_attention_create("{", NULL, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "JSON");
  EXPECT(attention == NULL);
  status = scoremod_attention_create("{\"batch\": 0}", NULL, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "heads_q");
  status = scoremod_attention_create(NULL, NULL, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "problem_json");
  status = scoremod_attention_create(kProblem, NULL, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "attention");
  EXPECT(scoremod_attention_create("{", NULL, &attention, NULL) == SCOREMOD_INVALID_ARGUMENT);

  scoremod_compile_options options = {0};
  options.struct_size = sizeof options;
  options.backend = "abacus";
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "abacus");
  options.backend = NULL;
  options.threads = -1;
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "threads");
  options.threads = 0;
  options.has_device = 1;
  options.device = 7;
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "device");
  options.has_device = 0;
  options.memory = "disk";
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "memory");
  options.memory = NULL;
  options.device_properties = "{}";
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "device_properties");
  status = scoremod_attention_get(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "device_properties");
  options.device_properties = NULL;
  options.new_sizes = 3;
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "new_sizes");
  /* An older header ended before it; what lies behind its struct is not read. */
  options.struct_size = offsetof(scoremod_compile_options, new_sizes);
  EXPECT(scoremod_attention_create(kProblem, &options, &attention, &message) == SCOREMOD_OK);
  scoremod_attention_destroy(attention);
  attention = NULL;
  options.struct_size = sizeof options;
  options.new_sizes = 2;
  EXPECT(scoremod_attention_create(kProblem, &options, &attention, &message) == SCOREMOD_OK);
  scoremod_attention_destroy(attention);
  attention = NULL;
  options.new_sizes = 0;
  options.disabled_pass_count = 1;
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "disabled_passes");
  const char* const kNoSuchPass[] = {"no_such_pass"};
  options.disabled_passes = kNoSuchPass;
  status = scoremod_attention_create(kProblem, &options, &attention, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "no_such_pass");
}

static void test_null_arguments(const scoremod_attention* attention) {
  char* message = NULL;
  char* text = NULL;
  size_t bytes = 0;
  const char* backend = NULL;
  float o[4];
  const scoremod_forward_args args = forward_args(o);
  EXPECT_FAILS(scoremod_attention_problem(NULL, &text, &message), SCOREMOD_INVALID_ARGUMENT, message, "attention");
  EXPECT(text == NULL);
  scoremod_status status = scoremod_attention_problem(attention, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "problem_json");
  status = scoremod_attention_backend(NULL, &backend, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "attention");
  status = scoremod_attention_backend(attention, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "backend");
  status = scoremod_attention_forward_workspace_bytes(NULL, &bytes, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "attention");
  status = scoremod_attention_forward_workspace_bytes(attention, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "bytes");
  status = scoremod_attention_backward_workspace_bytes(attention, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "bytes");
  status = scoremod_attention_forward(NULL, &args, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "attention");
  status = scoremod_attention_forward(attention, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "args");
  status = scoremod_attention_backward(attention, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "args");
  status = scoremod_support(NULL, NULL, &text, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "problem_json");
  status = scoremod_support(kProblem, NULL, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "answers_json");
  status = scoremod_explain(NULL, NULL, &text, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "problem_json");
  status = scoremod_explain(kProblem, NULL, NULL, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "explanation_json");
  scoremod_compile_options elsewhere = {0};
  elsewhere.struct_size = sizeof elsewhere;
  elsewhere.device_properties = "{}";
  status = scoremod_support(kProblem, &elsewhere, &text, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "properties of a CUDA device");
  status = scoremod_explain(kProblem, &elsewhere, &text, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "properties of a CUDA device");
  scoremod_attention_destroy(NULL);
  scoremod_text_free(NULL);
  EXPECT(strcmp(scoremod_status_name(77), "unknown status") == 0);
}

static void test_buffers(const scoremod_attention* attention) {
  float o[4] = {7, 7, 7, 7};
  char* message = NULL;
  scoremod_forward_args args = forward_args(o);
  args.k.data = NULL;
  EXPECT_FAILS(scoremod_attention_forward(attention, &args, &message), SCOREMOD_INVALID_ARGUMENT, message, "'k'");
  args = forward_args(o);
  args.v.bytes -= 1;
  EXPECT_FAILS(scoremod_attention_forward(attention, &args, &message), SCOREMOD_INVALID_ARGUMENT, message, "'v'");
  args = forward_args(o);
  args.operand_count = 0;
  EXPECT_FAILS(scoremod_attention_forward(attention, &args, &message), SCOREMOD_INVALID_ARGUMENT, message, "gain");
  args = forward_args(o);
  args.operands = NULL;
  EXPECT_FAILS(scoremod_attention_forward(attention, &args, &message), SCOREMOD_INVALID_ARGUMENT, message, "operands");
  const scoremod_operand kNameless = {NULL, {&kGain, sizeof kGain}};
  args.operands = &kNameless;
  EXPECT_FAILS(scoremod_attention_forward(attention, &args, &message), SCOREMOD_INVALID_ARGUMENT, message, "name");
  for (int i = 0; i < 4; ++i) EXPECT(o[i] == 7);

  scoremod_backward_args backward = {0};
  backward.struct_size = sizeof backward;
  const scoremod_status status = scoremod_attention_backward(attention, &backward, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "backward");
}

/* A caller of a newer header has a longer struct; what this library can't know must be zero. */
typedef struct {
  scoremod_forward_args known;
  void* added;
} NewerForwardArgs;

static void test_struct_sizes(const scoremod_attention* attention) {
  float o[4];
  char* message = NULL;
  scoremod_forward_args args = forward_args(o);
  args.struct_size = 0;
  EXPECT_FAILS(scoremod_attention_forward(attention, &args, &message), SCOREMOD_INVALID_ARGUMENT, message,
               "struct_size");
  args.struct_size = (size_t)1 << 40;
  EXPECT_FAILS(scoremod_attention_forward(attention, &args, &message), SCOREMOD_INVALID_ARGUMENT, message,
               "struct_size");

  /* An older header had no `workspace` and `options`; what lies behind its struct is not read. */
  args = forward_args(o);
  args.struct_size = offsetof(scoremod_forward_args, workspace);
  args.workspace.bytes = 1;
  args.options = (const scoremod_call_options*)&args;
  scoremod_status status = scoremod_attention_forward(attention, &args, &message);
  EXPECT_OK(status, message);

  NewerForwardArgs newer = {forward_args(o), NULL};
  newer.known.struct_size = sizeof newer;
  status = scoremod_attention_forward(attention, &newer.known, &message);
  EXPECT_OK(status, message);
  newer.added = o;
  status = scoremod_attention_forward(attention, &newer.known, &message);
  EXPECT_FAILS(status, SCOREMOD_INVALID_ARGUMENT, message, "newer");
}

int main(void) {
  test_creation();
  scoremod_attention* attention = NULL;
  char* message = NULL;
  const scoremod_status status = scoremod_attention_create(kProblem, NULL, &attention, &message);
  EXPECT_OK(status, message);
  if (attention == NULL) return 1;
  test_null_arguments(attention);
  test_buffers(attention);
  test_struct_sizes(attention);
  scoremod_attention_destroy(attention);
  return failure_count > 0;
}
