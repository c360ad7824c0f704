#include "support/emulated_hopper.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "backend/kernels/backend/kernels_backend.hpp"

namespace scoremod::test {
namespace {

using backend::kernels::ArgumentBytes;
using backend::kernels::TensorMaps;

/// TensorMap of the emulated device.
struct EmulatedMap {
  const std::byte* data;
  std::array<std::int64_t, 4> sizes;    ///< dim, sequence, heads, batch
  std::array<std::int64_t, 4> strides;  ///< in elements
  std::int64_t element_bytes, box_rows;
};
static_assert(sizeof(EmulatedMap) <= TensorMaps::kBytes);

}  // namespace

void write_emulated_maps(const AttentionProblem& problem, ArgumentBytes& arguments) {
  std::size_t number = 0;
  for (const auto& [tensor, sizes] : backend::kernels::mapped_tensors(problem, arguments.call())) {
    const EmulatedMap map{static_cast<const std::byte*>(tensor->data),
                          {sizes.dim, sizes.sequence, sizes.heads, sizes.batch},
                          {tensor->dim, tensor->row, tensor->head, tensor->batch},
                          static_cast<std::int64_t>(size_of(problem.dtype)),
                          backend::kernels::box_rows_of(problem)};
    std::memcpy(arguments.maps().bytes[number++], &map, sizeof(map));
    if (tensor->aligned != 0) tensor->aligned = backend::kernels::device::kMappedRows;
  }
}

// The primitives that follow from a text's own constants, or do nothing on a host; tests/emulated has the others.
std::string_view emulated_hopper_primitives() {
  return R"text(
#define SCOREMOD_MAPPED_ARGUMENT const MappedArguments&

static const bool emulated_with_hopper = emulated::use_hopper();

inline int block_number() { return (int)emulated::block; }
inline void fence_mbarrier_init() {}
inline void fetch_map(const TensorMap*) {}
inline void fence_proxy_async() {}
inline void add_in_order(float& sum, float x, float y) { sum = multiply_add(x, y, sum); }
inline void meet(int number, int threads) { emulated::meet_at(number, threads); }
inline void arrive_at(int number, int threads) { emulated::arrive_at(number, threads); }
template <int kRegisters>
inline void setmaxnreg_inc() {}
template <int kRegisters>
inline void setmaxnreg_dec() {}
inline unsigned moved_by(unsigned view, int bytes) { return view + (unsigned)(bytes >> 4); }
inline void wgmma_fence() { emulated::wgmma_fence(); }
inline void wgmma_commit() { emulated::end_group(); }
template <int kLeft>
inline void wgmma_wait() {
  emulated::wait_for_groups(kLeft);
}
template <class Values>
inline void fence_operand(Values& values) {
  asm volatile("" : : "r"(&values) : "memory");
}

template <int kColumns>
struct Product {
  static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    emulated::ask(d, kColumns, {nullptr, a, false}, b, adds);
  }
  static void of_columns(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    emulated::ask(d, kColumns, {nullptr, a, true}, b, adds);
  }
  static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds) {
    emulated::ask(d, kColumns, {a, 0, false}, b, adds);
  }
};
)text";
}

std::string_view emulated_float8_primitives() {
  return R"text(
inline unsigned e4m3_quad_of(float x0, float x1, float x2, float x3) {
  return emulated::e4m3_of(x0) | emulated::e4m3_of(x1) << 8 | emulated::e4m3_of(x2) << 16 | emulated::e4m3_of(x3) << 24;
}
template <int kColumns>
struct Float8Product {
  static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    emulated::ask(d, kColumns, {nullptr, a, false}, b, adds, emulated::Element::kE4m3);
  }
  static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds) {
    emulated::ask(d, kColumns, {a, 0, false}, b, adds, emulated::Element::kE4m3);
  }
};
)text";
}

}  // namespace scoremod::test
