#include "plans/plan_work.hpp"

#include <array>
#include <atomic>

namespace scoremod::plans {
namespace {

struct Sum {
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::int64_t> nanoseconds{0};
};

Sum& sum_of(WorkKind kind) {
  static std::array<Sum, 3> sums;
  return sums[static_cast<std::size_t>(kind)];
}

thread_local bool at_work = false;

}  // namespace

CountedWork::CountedWork(WorkKind kind) : kind_(kind), outermost_(!at_work), start_(std::chrono::steady_clock::now()) {
  at_work = true;
}

CountedWork::~CountedWork() {
  if (!outermost_) return;
  at_work = false;
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  ++sum_of(kind_).count;
  sum_of(kind_).nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
}

void CountedWork::forget() {
  if (!outermost_) return;
  outermost_ = false;
  at_work = false;
}

PlanWork plan_work(WorkKind kind) {
  const Sum& sum = sum_of(kind);
  return {sum.count, static_cast<double>(sum.nanoseconds) * 1e-6};
}

}  // namespace scoremod::plans
