#include "scoremod/cache.hpp"

#include <memory>
#include <mutex>

#include "base/fork_mutex.hpp"
#include "plans/erased_plan_cache.hpp"
#include "plans/plan_store.hpp"
#include "plans/plan_work.hpp"
#include "plans/store_settings.hpp"

namespace scoremod {
namespace plans {
namespace {

struct ProcessStore {
  ForkMutex mutex;
  std::shared_ptr<PlanStore> store;
};

/// Never destroyed: threads may build while the process ends.
ProcessStore& process_store() {
  static auto& made = *new ProcessStore;
  return made;
}

}  // namespace

std::shared_ptr<PlanStore> plan_store() {
  const std::lock_guard lock(process_store().mutex);
  std::shared_ptr<PlanStore>& store = process_store().store;
  if (store == nullptr) {
    const StoreSettings settings = store_settings_from_environment();
    store = std::make_shared<PlanStore>(settings.directory, settings.max_bytes);
  }
  return store;
}

}  // namespace plans

using plans::plan_store;

CacheStatistics cache_statistics() {
  using plans::WorkKind;
  return {plans::plan_cache_statistics(), plan_store()->statistics(), plans::plan_work(WorkKind::kBuild),
          plans::plan_work(WorkKind::kLoad), plans::plan_work(WorkKind::kTrial)};
}

std::string plan_store_directory() { return plan_store()->directory().string(); }

void set_plan_store_directory(const std::string& directory) {
  const std::uint64_t max_bytes = plan_store()->max_bytes();
  const auto store = std::make_shared<plans::PlanStore>(directory, max_bytes);
  const std::lock_guard lock(plans::process_store().mutex);
  plans::process_store().store = store;
}

std::uint64_t plan_store_limit() { return plan_store()->max_bytes(); }
void set_plan_store_limit(std::uint64_t bytes) { plan_store()->set_max_bytes(bytes); }

std::vector<StoredFile> list_plan_store() { return plan_store()->list(); }
std::vector<StoredFile> verify_plan_store() { return plan_store()->verify(); }
StoreDeletion prune_plan_store(std::uint64_t max_bytes) { return plan_store()->prune(max_bytes); }
StoreDeletion remove_damaged_from_plan_store() { return plan_store()->remove_damaged(); }
StoreDeletion clear_plan_store() { return plan_store()->clear(); }

}  // namespace scoremod
