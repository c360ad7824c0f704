#include <mutex>

#include "backend/kernels/family.hpp"
#include "backend/kernels/float8/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/portable/family.hpp"
#include "backend/kernels/split_kv/family.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr const KernelFamily* kFamilies[]{&kHopperFamily, &kFloat8Family, &kPortableFamily, &kSplitKvFamily};

std::mutex added_mutex;
std::vector<const KernelFamily*>& added() {
  static std::vector<const KernelFamily*> list;
  return list;
}

}  // namespace

std::vector<const KernelFamily*> families() {
  std::vector<const KernelFamily*> list(std::begin(kFamilies), std::end(kFamilies));
  const std::scoped_lock lock(added_mutex);
  list.insert(list.end(), added().begin(), added().end());
  return list;
}

AddedFamily::AddedFamily(const KernelFamily& family, std::span<const cuda::KernelFile> files) {
  cuda::set_added_files(files);
  const std::scoped_lock lock(added_mutex);
  added().push_back(&family);
}

AddedFamily::~AddedFamily() {
  const std::scoped_lock lock(added_mutex);
  added().pop_back();
  cuda::set_added_files({});
}

}  // namespace scoremod::backend::kernels
