/* Answers for a device that is not here, by the text of its properties. */
#include "expect.h"

static const char kProblem[] =
    "{\"batch\": 2, \"heads_q\": 4, \"seq_q\": 512, \"dim_qk\": 128, \"dtype\": \"bf16\","
    " \"program\": \"value = score; keep = q_idx >= kv_idx\"}";

enum { kNothingBuilt = 1, kMostText = 1024 };

static scoremod_compile_options options_of(const char* device_properties) {
  scoremod_compile_options options = {0};
  options.struct_size = sizeof options;
  options.support_level = kNothingBuilt;
  options.device_properties = device_properties;
  return options;
}

/* The device's text: `version` is 900 for compute capability 9.0. */
static void write_device(char* text, int version) {
  snprintf(text, kMostText,
           "{\"deviceVer\":%d,\"multiProcessorCount\":132,\"maxSharedMemoryPerBlockOptin\":232448,\"deviceName\":"
           "\"A GPU\",\"l2CacheSize\":62914560,\"totalGlobalMem\":150109880320,\"clockRate\":1980000,"
           "\"memoryClockRate\":3201000,\"memoryBusWidth\":6144}",
           version);
}

/* Copies the part of the answers that is the kernels'; returns 0 where this build has no such backend. */
static int find_kernels(const char* answers, char* part) {
  const char* begin = strstr(answers, "{\"backend\":\"kernels\"");
  const char* end = begin == NULL ? NULL : strstr(begin, "},{\"backend\"");
  part[0] = '\0';
  if (begin == NULL || end == NULL || (size_t)(end - begin) >= kMostText * 4) return 0;
  memcpy(part, begin, (size_t)(end - begin));
  part[end - begin] = '\0';
  return 1;
}

static int kernels_support(const scoremod_compile_options* options, char* part) {
  char *answers = NULL, *message = NULL;
  const scoremod_status status = scoremod_support(kProblem, options, &answers, &message);
  EXPECT_OK(status, message);
  if (answers == NULL) return 0;
  EXPECT(strstr(answers, "{\"backend\":\"cpu\",\"supported\":true") != NULL);
  const int is_built = find_kernels(answers, part);
  scoremod_text_free(answers);
  return is_built;
}

/* Returns 0 where this build has no backend of a device. */
static int test_support(void) {
  char hopper[kMostText], volta[kMostText], part[kMostText * 4];
  write_device(hopper, 900);
  write_device(volta, 700);
  scoremod_compile_options options = options_of(hopper);
  if (!kernels_support(&options, part)) {
    printf("skipped: this build has no backend of a device\n");
    return 0;
  }
  EXPECT(strstr(part, "\"supported\":true") != NULL);
  EXPECT(strstr(part, "predicted") != NULL);
  options = options_of(volta);
  EXPECT(kernels_support(&options, part));
  EXPECT(strstr(part, "\"supported\":false") != NULL);
  EXPECT(strstr(part, "7.0") != NULL);
  EXPECT(strstr(part, "no_device") == NULL);
  /* An older header ended before the field: the device is the one that is here. */
  options.struct_size = offsetof(scoremod_compile_options, device_properties);
  EXPECT(kernels_support(&options, part));
  EXPECT(strstr(part, "7.0") == NULL);
  return 1;
}

static void test_explain(void) {
  char hopper[kMostText], volta[kMostText];
  write_device(hopper, 900);
  write_device(volta, 700);
  char *explanation = NULL, *message = NULL;
  scoremod_compile_options options = options_of(hopper);
  options.backend = "kernels";
  scoremod_status status = scoremod_explain(kProblem, &options, &explanation, &message);
  EXPECT_OK(status, message);
  if (explanation == NULL) return;
  EXPECT(strstr(explanation, "\"architecture\": \"sm_90\"") != NULL);
  EXPECT(strstr(explanation, "7.0") == NULL);
  scoremod_text_free(explanation);
  options.device_properties = volta;
  status = scoremod_explain(kProblem, &options, &explanation, &message);
  EXPECT_OK(status, message);
  if (explanation == NULL) return;
  EXPECT(strstr(explanation, "sm_90") == NULL);
  EXPECT(strstr(explanation, "7.0") != NULL);
  EXPECT(strstr(explanation, "\"chosen\": true") == NULL);
  scoremod_text_free(explanation);
}

int main(void) {
  if (test_support()) test_explain();
  return failure_count > 0;
}
