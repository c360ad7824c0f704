#include "support/emulated_hopper.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "backend/kernels/loading/attention_plans.hpp"

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

// TMA loads complete at any time between their issue and the end of their barrier's phase: at once, or when nothing
// else can go on. WGMMAs read shared memory and registers, and write their accumulators, only when a thread waits for
// them, the latest time that a device allows. Until then the accumulators hold another number. It is finite, because
// kernels recompute results that are not.
std::string_view emulated_hopper_primitives() {
  return R"text(
#include <deque>
#include <map>
#define SCOREMOD_MAPPED_ARGUMENT const MappedArguments&

using Barrier = unsigned long long;
struct alignas(64) TensorMap {
  const unsigned char* data;
  long long sizes[4], strides[4], element_bytes, box_rows;
  unsigned long long unused[5];
};
static_assert(sizeof(TensorMap) == 128, "as the driver's");

namespace emulated {
// Shared memory begins where nothing is aligned but to 16 bytes.
constexpr unsigned kSharedBase = 80;
struct Phase { int count, left, bytes, parity; };
struct Box { Half* to; const TensorMap* map; Barrier* barrier; int dim, row, h, b; const void* from; int bytes; };
struct Factor { const unsigned* registers; unsigned view; bool transposed; };
struct Step;
using Multiply = void (*)(unsigned warp, Step* const (&lanes)[32]);
struct Step {
  float (*sums)[4];
  int columns;
  Factor a;
  unsigned b;
  bool adds, saved;
  Multiply multiply;
  std::vector<float> before;
};
struct Products {
  std::vector<Step> open;
  std::deque<std::vector<Step>> groups;
  bool begun;
};
static std::map<Barrier*, Phase> phases;
static std::vector<Box> boxes;
// A thread's cp.async copies that a barrier waits for.
struct Arrival { Barrier* barrier; std::vector<Copy> copies; };
static std::vector<Arrival> arrivals;
static std::vector<Products> products;

inline Phase& phase_of(Barrier* barrier) {
  const auto found = phases.find(barrier);
  if (found == phases.end()) fail("a barrier that was not begun");
  return found->second;
}
inline void check_phase(Phase& phase) {
  if (phase.left != 0 || phase.bytes != 0) return;
  phase.left = phase.count;
  phase.parity ^= 1;
  ++events;
}
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
inline unsigned char* byte_at(unsigned address) {
  if (address < kSharedBase || address - kSharedBase + 2 > shared.size()) fail("an address beyond shared memory");
  return shared.data() + (address - kSharedBase);
}
inline Half* half_at(unsigned address) { return (Half*)byte_at(address); }
inline unsigned address_of(const void* at) { return (unsigned)((const unsigned char*)at - shared.data()) + kSharedBase; }

inline void copy(const Box& box) {
  if (box.map == nullptr) {
    memcpy(box.to, box.from, box.bytes);
  } else {
    const TensorMap& map = *box.map;
    const unsigned to = address_of(box.to);
    const int element = (int)map.element_bytes;
    for (int row = 0; row < map.box_rows; ++row)
      for (int dim = 0; dim < 128 / element; ++dim) {
        const long long at[4] = {box.dim + dim, box.row + row, box.h, box.b};
        bool there = true;
        long long from = 0;
        for (int i = 0; i < 4; ++i) {
          there = there && at[i] >= 0 && at[i] < map.sizes[i];
          from += at[i] * map.strides[i];
        }
        unsigned char* const at_shared = byte_at(swizzled(to + row * 128 + dim * element));
        if (there)
          memcpy(at_shared, map.data + from * element, element);
        else
          memset(at_shared, 0, element);
      }
  }
  Phase& phase = phase_of(box.barrier);
  phase.bytes -= box.bytes;
  if (phase.bytes < 0) fail("more bytes than a barrier expects");
  check_phase(phase);
  ++events;
}
inline void ask_copy(const Box& box) {
  // One that the barrier does not expect yet may complete its phase too early.
  if (phase_of(box.barrier).bytes < box.bytes) fail("a copy that its barrier does not expect");
  boxes.push_back(box);
}
inline void count_arrival(Barrier* barrier) {
  Phase& phase = phase_of(barrier);
  if (--phase.left < 0) fail("more arrivals than a barrier has");
  check_phase(phase);
  ++events;
}
// About half of those that wait, or all where nothing else goes on.
inline bool go_on_with_arrivals(bool all_wait, unsigned random) {
  std::vector<Arrival> left;
  bool any = false;
  for (Arrival& arrival : arrivals) {
    random = random * 1664525u + 1013904223u;
    if (!all_wait && random >> 31 == 0) {
      left.push_back(std::move(arrival));
      continue;
    }
    for (const Copy& copy : arrival.copies) {
      memset(copy.to, 0, copy.bytes);
      memcpy(copy.to, copy.from, copy.copied);
    }
    count_arrival(arrival.barrier);
    any = true;
  }
  arrivals = std::move(left);
  return any;
}
static bool go_on_with_boxes(bool all_wait, unsigned random) {
  if (boxes.empty() || (!all_wait && random % 2 == 0)) return false;
  const size_t which = random / 2 % boxes.size();
  const Box box = boxes[which];
  boxes.erase(boxes.begin() + which);
  copy(box);
  return true;
}
static bool go_on_with_copies(bool all_wait, unsigned random) {
  const bool arrived = go_on_with_arrivals(all_wait, random);
  return go_on_with_boxes(all_wait && !arrived, random) || arrived;
}
static void begin_hopper(size_t) {
  phases.clear();
  boxes.clear();
  arrivals.clear();
  products.assign(threads.size(), Products{});
}
static void end_hopper() {
  if (!boxes.empty() || !arrivals.empty()) fail("a block ends before its copies");
  for (const Products& own : products)
    if (!own.open.empty() || !own.groups.empty()) fail("a thread ends before its products");
}
// Before anything else of the library runs.
static const bool hooked = [] {
  begin_block = begin_hopper;
  go_on = go_on_with_copies;
  end_block = end_hopper;
  return true;
}();

// A factor in shared memory: element k of row (or column) `number`, which lies along the sum or across it.
inline float along(unsigned view, int number, int k) {
  const unsigned start = (view & 0x3fffu) << 4;
  return value_of(*half_at(swizzled(start + number / 8 * 1024 + number % 8 * 128 + k * 2)), kBf16);
}
inline float across(unsigned view, int number, int k) {
  const unsigned start = (view & 0x3fffu) << 4, block = (view >> 16 & 0x3fffu) << 4;
  return value_of(*half_at(swizzled(start + number / 64 * block + k / 8 * 1024 + k % 8 * 128 + number % 64 * 2)), kBf16);
}

inline void check_same(const Step& step, const Step& first) {
  if (step.b != first.b || step.columns != first.columns || step.a.view != first.a.view || step.adds != first.adds ||
      step.multiply != first.multiply)
    fail("threads of a warp ask for different products");
}

// The step of a warp's lanes, which have 16 rows: four warps' are a warpgroup's product.
inline void multiply(unsigned warp, Step* const (&lanes)[32]) {
  const Step& first = *lanes[0];
  static float left[16][16];
  // A static one would be one for all programs of a process (STB_GNU_UNIQUE), and go with the first of them.
  std::vector<float> right((size_t)first.columns * 16);
  for (int lane = 0; lane < 32; ++lane) {
    const Step& step = *lanes[lane];
    check_same(step, first);
    if (step.a.registers == nullptr) continue;
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < 2; ++i)
        left[lane / 4 + part % 2 * 8][lane % 4 * 2 + i + part / 2 * 8] =
            value_of((Half)(step.a.registers[part] >> (16 * i)), kBf16);
  }
  const bool of_rows = first.a.registers == nullptr && !first.a.transposed;
  if (first.a.registers == nullptr)
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k) {
        const int number = (int)(warp % 4) * 16 + row;
        left[row][k] = first.a.transposed ? across(first.a.view, number, k) : along(first.a.view, number, k);
      }
  for (int column = 0; column < first.columns; ++column)
    for (int k = 0; k < 16; ++k)
      right[column * 16 + k] = of_rows ? along(first.b, column, k) : across(first.b, column, k);
  for (int lane = 0; lane < 32; ++lane) {
    Step& step = *lanes[lane];
    for (int n = 0; n < step.columns / 8; ++n)
      for (int e = 0; e < 4; ++e) {
        float total = 0.0f;
        for (int k = 0; k < 16; ++k)
          total += left[lane / 4 + e / 2 * 8][k] * right[(n * 8 + lane % 4 * 2 + e % 2) * 16 + k];
        const float before = !step.adds ? 0.0f : step.saved ? step.before[n * 4 + e] : step.sums[n][e];
        step.sums[n][e] = before + total;
      }
  }
}

inline void ask(float (*sums)[4], int columns, Factor a, unsigned b, bool adds, Multiply how = multiply) {
  Products& own = products[current];
  if (!own.begun) fail("a product before wgmma_fence()");
  Step step{sums, columns, a, b, adds, false, how, {}};
  bool under_way = false;
  const auto look = [&](const std::vector<Step>& steps) {
    for (const Step& other : steps) under_way = under_way || other.sums == sums;
  };
  look(own.open);
  for (const auto& group : own.groups) look(group);
  if (!under_way) {
    step.saved = true;
    step.before.assign(&sums[0][0], &sums[0][0] + columns / 2);
    for (int i = 0; i < columns / 2; ++i) (&sums[0][0])[i] = 1234.5f;
  }
  own.open.push_back(step);
}
inline void end_group() {
  products[current].groups.push_back(std::move(products[current].open));
  products[current].open.clear();
}
inline void wait_for_groups(size_t left) {
  products[current].begun = false;
  Warp& warp = warps[current / 32];
  warp.in[current % 32][0] = left;
  meet("products", [](Warp& all) {
    const unsigned first = current / 32 * 32;
    for (;;) {
      std::vector<Step>* groups[32];
      for (unsigned lane = 0; lane < 32; ++lane) {
        Products& own = products[first + lane];
        if (own.groups.size() != products[first].groups.size() || all.in[lane][0] != all.in[0][0])
          fail("threads of a warp wait for different products");
        if (own.groups.size() <= all.in[0][0]) return;
        groups[lane] = &own.groups.front();
        if (groups[lane]->size() != groups[0]->size()) fail("threads of a warp ask for different products");
      }
      for (size_t i = 0; i < groups[0]->size(); ++i) {
        Step* lanes[32];
        for (int lane = 0; lane < 32; ++lane) lanes[lane] = &(*groups[lane])[i];
        lanes[0]->multiply(first / 32, lanes);
      }
      for (unsigned lane = 0; lane < 32; ++lane) products[first + lane].groups.pop_front();
    }
  });
}
}  // namespace emulated

inline unsigned shared_address(const void* at) { return emulated::address_of(at); }
inline void warp_barrier() {
  emulated::meet("a warp's barrier", [](emulated::Warp&) {});
}
inline int block_number() { return (int)emulated::block; }
inline int take_number(int* next) { return (*next)++; }
inline int uniform(int value) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  warp.in[lane][0] = (uint32_t)value;
  emulated::meet("a uniform value", [](emulated::Warp& all) {
    for (int to = 0; to < 32; ++to) all.out[to][0] = (uint32_t)all.in[0][0];
  });
  return (int)warp.out[lane][0];
}

inline void mbarrier_init(Barrier* barrier, int arrivals) { emulated::phases[barrier] = {arrivals, arrivals, 0, 0}; }
inline void fence_mbarrier_init() {}
inline void arrive(Barrier* barrier) { emulated::count_arrival(barrier); }
inline void arrive_after_copies(Barrier* barrier) {
  std::vector<emulated::Copy>& copies = emulated::threads[emulated::current].copies;
  emulated::arrivals.push_back({barrier, std::move(copies)});
  copies.clear();
}
inline void arrive_and_expect(Barrier* barrier, int bytes) {
  emulated::phase_of(barrier).bytes += bytes;
  arrive(barrier);
}
inline void mbarrier_wait(Barrier* barrier, int parity) {
  if (emulated::phase_of(barrier).parity != parity) return;
  while (emulated::phase_of(barrier).parity == parity) emulated::give_way();
  ++emulated::events;
}
inline void fetch_map(const TensorMap*) {}
inline void tma_load(void* to, const TensorMap* map, Barrier* barrier, int dim, int row, int h, int b) {
  if (emulated::address_of(to) % 128 != 0) emulated::fail("a box that is not aligned");
  emulated::ask_copy({(Half*)to, map, barrier, dim, row, h, b, nullptr, (int)map->box_rows * 128});
}
inline void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  if (emulated::address_of(to) % 16 != 0 || (uintptr_t)from % 16 != 0 || bytes % 16 != 0)
    emulated::fail("a copy that is not aligned");
  emulated::ask_copy({(Half*)to, nullptr, barrier, 0, 0, 0, 0, from, bytes});
}
inline void fence_proxy_async() {}
inline void store_matrices(Half* row, const unsigned (&in)[4]) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  warp.in[lane][0] = (uint64_t)row;
  for (int m = 0; m < 4; ++m) warp.in[lane][1 + m] = in[m];
  emulated::meet("matrices to store", [](emulated::Warp& all) {
    for (int from = 0; from < 32; ++from)
      for (int m = 0; m < 4; ++m)
        for (int i = 0; i < 2; ++i)
          ((Half*)all.in[m * 8 + from / 4][0])[from % 4 * 2 + i] = (Half)(all.in[from][1 + m] >> (16 * i));
  });
}
inline void add_to_memory(float* to, const float (&values)[4]) {
  if ((uintptr_t)to % 16 != 0) emulated::fail("floats to add to that are not aligned");
  for (int i = 0; i < 4; ++i) to[i] += values[i];
}
inline void add_in_order(float& sum, float x, float y) { sum = multiply_add(x, y, sum); }
inline void meet(int number, int threads) { emulated::meet_at(number, threads); }
inline void arrive_at(int number, int threads) { emulated::arrive(number, threads, false); }
template <int kRegisters>
inline void setmaxnreg_inc() {}
template <int kRegisters>
inline void setmaxnreg_dec() {}

inline unsigned tile_view(const Half* tile, int rows) {
  if (shared_address(tile) % 1024 != 0) emulated::fail("a tile that is not aligned");
  return (shared_address(tile) & 0x3ffffu) >> 4 | (unsigned)(rows * 128) >> 4 << 16;
}
inline unsigned moved_by(unsigned view, int bytes) { return view + (unsigned)(bytes >> 4); }
inline void wgmma_fence() { emulated::products[emulated::current].begun = true; }
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

}  // namespace scoremod::test
