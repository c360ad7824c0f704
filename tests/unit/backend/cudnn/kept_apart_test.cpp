// Plans of several devices, CUDA contexts and versions in one folder and in one cache.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cudnn/graph/plan_key.hpp"
#include "plans/plan_cache.hpp"
#include "plans/plan_store.hpp"
#include "support/scratch_folder.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// The keys of one graph: on devices that differ in one property, and with other versions of each library.
std::vector<PlanKey> keys_of_several_places() {
  const std::array devices{
      DeviceProperties{"", "NVIDIA H200", 90, 132, 232448, 62914560, {}},
      DeviceProperties{"", "NVIDIA H100", 90, 132, 232448, 52428800, {}},
      DeviceProperties{"", "NVIDIA H200", 90, 60, 232448, 62914560, {}},  // a part of one
      DeviceProperties{"", "NVIDIA B200", 100, 148, 232448, 132120576, {}},
  };
  std::vector<PlanKey> keys;
  for (const DeviceProperties& device : devices) {
    for (const std::size_t cudnn_version : {91900u, 91901u, 92700u}) {
      for (const std::size_t frontend_version : {12300u, 12301u}) {
        for (const char* library_version : {"0.1.0", "0.1.1"}) {
          PlanKey key;
          key.graph.q = key.graph.k = key.graph.v = key.graph.o = {{2, 4, 256, 64}, {65536, 64, 256, 1}};
          key.device = plan_device(device);
          key.cudnn_version = cudnn_version;
          key.frontend_version = frontend_version;
          key.library_version = library_version;
          keys.push_back(key);
        }
      }
    }
  }
  return keys;
}

Bytes payload_of(std::size_t number) { return Bytes(50 + number, static_cast<std::byte>(number)); }

TEST(PlansOfSeveralPlaces, NeverMeetInOneFolder) {
  const test::ScratchFolder folder;
  const std::vector<PlanKey> keys = keys_of_several_places();
  plans::PlanStore store(folder.path());
  // The last one never stores anything, so that each of the others could be taken for its plan.
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    EXPECT_TRUE(store.save({plans::RecordKind::kPlan, "cudnn", architecture_text(keys[i].device),
                            plan_label(keys[i].graph), canonical_bytes(keys[i]), payload_of(i)}));
  }
  plans::PlanStore another(folder.path());
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    EXPECT_EQ(another.load(plans::RecordKind::kPlan, canonical_bytes(keys[i])), payload_of(i)) << i;
  }
  EXPECT_EQ(another.load(plans::RecordKind::kPlan, canonical_bytes(keys.back())), std::nullopt);
  EXPECT_EQ(another.list().size(), keys.size() - 1);
}

TEST(PlansOfSeveralPlaces, NeverMeetInOneProcess) {
  struct Plan {
    std::size_t number;
  };
  plans::PlanCache<Plan> cache("several places");
  std::vector<LoadedPlanKey> keys;
  for (const PlanKey& plan : keys_of_several_places()) {
    for (const int ordinal : {0, 1}) {
      for (const std::uint64_t context : {1u, 2u}) keys.push_back({plan, ordinal, context});
    }
  }
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto found = cache.get(canonical_bytes(keys[i]), [&]() -> plans::PlanOrRefusal<Plan> {
        return {std::make_shared<Plan>(Plan{i}), 1, {}};
      });
      ASSERT_EQ(found.plan->number, i);
    }
  }
  EXPECT_EQ(cache.statistics().builds, keys.size());
}

}  // namespace
}  // namespace scoremod::backend::cudnn
