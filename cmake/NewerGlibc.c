/* Names that Debian 12's C++ headers and libstdc++.a take from a C library newer than glibc 2.28. ManylinuxToolchain.cmake links them into the wheel. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* glibc 2.32. Whether the process has one thread, so that counts of shared pointers need no atomic instructions. "No" is right for each. */
char __libc_single_threaded = 0;

/* glibc 2.36. std::random_device asks it. */
unsigned arc4random(void) {
  unsigned number;
  if (getentropy(&number, sizeof number) != 0) abort();
  return number;
}

/* glibc 2.30. std::condition_variable waits until a time of the steady clock, and looks at that clock again when this returns. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* end) {
  enum { kNanoseconds = 1000000000 };
  struct timespec now, until;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &until) != 0) return EINVAL;
  until.tv_sec += end->tv_sec - now.tv_sec;
  until.tv_nsec += end->tv_nsec - now.tv_nsec;
  if (until.tv_nsec < 0) {
    until.tv_nsec += kNanoseconds;
    --until.tv_sec;
  } else if (until.tv_nsec >= kNanoseconds) {
    until.tv_nsec -= kNanoseconds;
    ++until.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &until);
}
