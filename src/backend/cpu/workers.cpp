#include "backend/cpu/workers.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "base/byte_count.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cpu {

void run_workers(int count, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(std::max(count, 1)));
  const auto guarded = [&](int worker) noexcept {
    try {
      body(worker);
    } catch (...) {
      failures[static_cast<std::size_t>(worker)] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(failures.size());
    for (int worker = 1; worker < count; ++worker) {
      try {
        threads.emplace_back(guarded, worker);
      } catch (const std::system_error&) {
        break;  // no more threads: those that there are do the work
      }
    }
    guarded(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

std::size_t workspace_bytes_of(const char* direction, const AttentionProblem& problem, std::size_t shared,
                               std::size_t each, int threads) {
  const std::size_t bytes = add_bytes(shared, multiply_bytes(each, static_cast<std::size_t>(threads)));
  if (bytes < kMaxBytes) return bytes;
  fail_unsupported("the cpu backend's ", direction,
                   " needs a workspace of 2^63 bytes or more, which no memory has, for ", "batch ", problem.batch, ", ",
                   problem.heads_q, " heads, ", problem.seq_q, " queries and ", problem.seq_kv,
                   " keys; split the batch or the heads");
}

}  // namespace scoremod::backend::cpu
