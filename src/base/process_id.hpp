#pragma once

#include <sys/types.h>

namespace scoremod {

/// getpid() without a system call each time. A forked child has its own.
pid_t process_id();

}  // namespace scoremod
