#include "scoremod/dtype.hpp"

#include <array>

#include "base/element.hpp"
#include "base/fail.hpp"

namespace scoremod {
namespace {

struct DTypeInfo {
  DType dtype;
  const char* name;
  std::size_t bytes;
  bool floating;
};

constexpr std::array<DTypeInfo, 7> kDTypes{{
    {DType::kF32, "f32", 4, true},
    {DType::kF16, "f16", 2, true},
    {DType::kBF16, "bf16", 2, true},
    {DType::kI32, "i32", 4, false},
    {DType::kBool, "bool", 1, false},
    {DType::kE4M3, "e4m3", 1, true},
    {DType::kE5M2, "e5m2", 1, true},
}};

const DTypeInfo& info(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  if (index >= kDTypes.size()) fail_argument("expected a DType, found the value ", index);
  return kDTypes[index];
}

}  // namespace

std::size_t size_of(DType dtype) { return info(dtype).bytes; }

const char* to_string(DType dtype) { return info(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DTypeInfo& entry : kDTypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

bool is_floating(DType dtype) { return info(dtype).floating; }

bool is_float8(DType dtype) { return dtype == DType::kE4M3 || dtype == DType::kE5M2; }

double read_element(DType dtype, const void* element) { return load_element<double>(element, dtype, 0); }

void write_element(DType dtype, void* element, double number) { store_element(element, dtype, 0, number); }

}  // namespace scoremod
