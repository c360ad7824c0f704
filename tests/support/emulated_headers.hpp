// The headers of emulated kernels' texts: GCC compiles them once (tests/CMakeLists.txt).
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <math.h>
#include <random>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <vector>
