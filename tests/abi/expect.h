/* Expectations of the tests in C: each failure is printed, and main returns failure_count > 0. */
#ifndef SCOREMOD_TESTS_ABI_EXPECT_H
#define SCOREMOD_TESTS_ABI_EXPECT_H

#include <stdio.h>
#include <string.h>

#include "scoremod/c_api.h"

static int failure_count = 0;

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      printf("%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      ++failure_count;                                                \
    }                                                                 \
  } while (0)

/* That a call succeeded and left no message. The call, which sets the message, comes first. */
#define EXPECT_OK(call, message)         \
  do {                                   \
    const scoremod_status got = (call);  \
    expect_ok(got, (message), __LINE__); \
  } while (0)

static inline void expect_ok(scoremod_status status, char* message, int line) {
  if (status != SCOREMOD_OK || message != NULL) {
    printf("line %d: expected success, found %s: %s\n", line, scoremod_status_name(status), message ? message : "");
    ++failure_count;
  }
  scoremod_text_free(message);
}

/* That a call failed in this way, with a message that has `part` in it. */
#define EXPECT_FAILS(call, wanted, message, part)             \
  do {                                                        \
    const scoremod_status got = (call);                       \
    expect_fails(got, (wanted), (message), (part), __LINE__); \
  } while (0)

static inline void expect_fails(scoremod_status status, scoremod_status wanted, char* message, const char* part,
                                int line) {
  if (status != wanted || message == NULL || strstr(message, part) == NULL) {
    printf("line %d: expected %s with a message that has '%s', found %s: %s\n", line, scoremod_status_name(wanted),
           part, scoremod_status_name(status), message ? message : "(none)");
    ++failure_count;
  }
  scoremod_text_free(message);
}

#endif
