#pragma once

namespace scoremod {

/// The machine's cores, as the process found them at its first question.
int cpu_cores();

/// The CPU threads that a request for so many gets: 0 asks for OMP_NUM_THREADS, or for one for each core where that is
/// not set. SCOREMOD_THREADS bounds all requests. Throws Error(kInvalidArgument) where it is no number from 1 on.
int cpu_threads(int requested);

}  // namespace scoremod
