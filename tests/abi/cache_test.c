/* The functions that look at kept plans and empty them, in a folder of the test's own. */
#include <stdio.h>
#include <stdlib.h>

#include "expect.h"

/* A file of the store by its name, and damaged by what is in it. */
static const char kFolder[] = "scoremod_abi_cache_test";
static const char kFile[] = "scoremod_abi_cache_test/plan-0123456789abcdef.scoremod";

static void write_damaged_file(void) {
  FILE* file = fopen(kFile, "w");
  EXPECT(file != NULL);
  if (file == NULL) return;
  EXPECT(fputs("no plan", file) >= 0);
  EXPECT(fclose(file) == 0);
}

static int file_is_there(void) {
  FILE* file = fopen(kFile, "r");
  if (file != NULL) fclose(file);
  return file != NULL;
}

/* That *text has `part` in it; frees it. */
static void expect_text(char* text, const char* part) {
  EXPECT(text != NULL && strstr(text, part) != NULL);
  if (text != NULL && strstr(text, part) == NULL) printf("found %s\n", text);
  scoremod_text_free(text);
}

static void test_statistics_and_limits(void) {
  char* message = NULL;
  char* text = NULL;
  EXPECT_OK(scoremod_plan_cache_set_limits(7, 12345, &message), message);
  EXPECT_OK(scoremod_plan_store_set_limit(54321, &message), message);
  EXPECT_OK(scoremod_cache_statistics(&text, &message), message);
  EXPECT(text != NULL && strstr(text, "\"limits\":{\"plans\":7,\"bytes\":12345}") != NULL);
  EXPECT(text != NULL && strstr(text, "\"hits\":0") != NULL);
  EXPECT(text != NULL && strstr(text, "/scoremod_abi_cache_test\"") != NULL);
  expect_text(text, "\"limit_bytes\":54321");
  EXPECT_OK(scoremod_plan_cache_clear(&message), message);
  EXPECT(scoremod_plan_cache_clear(NULL) == SCOREMOD_OK);
}

static scoremod_attention* get(void) {
  static const char problem[] =
      "{\"batch\": 1, \"heads_q\": 1, \"seq_q\": 2, \"dim_qk\": 8, \"program\": \"value = score\"}";
  char* message = NULL;
  scoremod_attention* attention = NULL;
  EXPECT_OK(scoremod_attention_get(problem, NULL, &attention, &message), message);
  return attention;
}

static void test_attentions(void) {
  char* message = NULL;
  char* text = NULL;
  scoremod_attention* first = get();
  scoremod_attention* second = get();
  size_t bytes = 0;
  EXPECT_OK(scoremod_cache_statistics(&text, &message), message);
  EXPECT(text != NULL && strstr(text, "\"compiled\":{\"problems\":1,\"forwards\":1,\"backwards\":0}") != NULL);
  expect_text(
      text,
      "\"attentions\":{\"hits\":1,\"misses\":1,\"waits\":0,\"failures\":0,\"evictions\":0,\"entries\":1,\"limit\":");
  EXPECT_OK(scoremod_attention_cache_clear(&message), message);
  scoremod_attention_destroy(first);
  EXPECT_OK(scoremod_attention_forward_workspace_bytes(second, &bytes, &message), message);
  EXPECT(bytes > 0);
  scoremod_attention_destroy(second);
  EXPECT_OK(scoremod_attention_cache_set_limit(3, &message), message);
  EXPECT_OK(scoremod_cache_statistics(&text, &message), message);
  expect_text(text, "\"entries\":0,\"limit\":3}");
}

static void test_files(void) {
  char* message = NULL;
  char* text = NULL;
  write_damaged_file();
  EXPECT_OK(scoremod_plan_store_files(0, &text, &message), message);
  expect_text(text, "plan-0123456789abcdef.scoremod");
  EXPECT_OK(scoremod_plan_store_files(1, &text, &message), message);
  expect_text(text, "\"damage\":\"is no file");
  EXPECT_OK(scoremod_plan_store_prune(100, &text, &message), message);
  expect_text(text, "{\"files\":0,\"bytes\":0}");
  EXPECT(file_is_there());
  EXPECT_OK(scoremod_plan_store_remove_damaged(&text, &message), message);
  expect_text(text, "{\"files\":1,\"bytes\":7}");
  EXPECT(!file_is_there());
  write_damaged_file();
  EXPECT(scoremod_plan_store_prune(0, NULL, NULL) == SCOREMOD_OK);
  EXPECT(!file_is_there());
  write_damaged_file();
  EXPECT(scoremod_plan_store_clear(NULL, NULL) == SCOREMOD_OK);
  EXPECT(!file_is_there());
}

static void test_misuse(void) {
  char* message = NULL;
  char* text = NULL;
  EXPECT_FAILS(scoremod_cache_statistics(NULL, &message), SCOREMOD_INVALID_ARGUMENT, message, "statistics_json");
  EXPECT_FAILS(scoremod_plan_store_files(0, NULL, &message), SCOREMOD_INVALID_ARGUMENT, message, "files_json");
  EXPECT_FAILS(scoremod_plan_store_set_directory(NULL, &message), SCOREMOD_INVALID_ARGUMENT, message, "directory");
  /* A file where a folder should be. */
  write_damaged_file();
  EXPECT_OK(scoremod_plan_store_set_directory(kFile, &message), message);
  EXPECT_FAILS(scoremod_plan_store_files(0, &text, &message), SCOREMOD_ENVIRONMENT, message, kFile);
  EXPECT(text == NULL);
  EXPECT_FAILS(scoremod_plan_store_clear(&text, &message), SCOREMOD_ENVIRONMENT, message, kFile);
  EXPECT(text == NULL);
  EXPECT(remove(kFile) == 0);
  /* Off, there are no files. */
  EXPECT_OK(scoremod_plan_store_set_directory("", &message), message);
  EXPECT_OK(scoremod_plan_store_files(1, &text, &message), message);
  expect_text(text, "[]");
}

int main(void) {
  char* message = NULL;
  /* C99 has no function that makes a folder. */
  EXPECT(system("mkdir -p scoremod_abi_cache_test") == 0);
  EXPECT_OK(scoremod_plan_store_set_directory(kFolder, &message), message);
  test_statistics_and_limits();
  test_attentions();
  test_files();
  test_misuse();
  EXPECT(remove(kFolder) == 0);
  return failure_count > 0;
}
