// Primitives of hopper/tiles.cuh. TMA loads complete at any time between their issue and the end of their
// barrier's phase: at once, or when nothing else can go on. WGMMAs read shared memory and registers, and write their
// accumulators, only when a thread waits for them, the latest time that a device allows. Until then the accumulators
// hold another number. It is finite, because kernels recompute results that are not.
#include <deque>
#include <map>

#include "emulated/state.hpp"

namespace emulated {
namespace {

/// The address of shared memory's begin: nothing is aligned but to 16 bytes.
constexpr unsigned kSharedBase = 80;
/// An accumulator holds it while its WGMMA runs.
constexpr float kUnderWay = 1234.5f;

struct Phase {
  int count, left, bytes, parity;
};
struct Box {
  Half* to;
  const TensorMap* map;
  Barrier* barrier;
  int dim, row, h, b;
  const void* from;
  int bytes;
};
/// A thread's cp.async copies that a barrier waits for.
struct Arrival {
  Barrier* barrier;
  std::vector<Copy> copies;
};
struct Products {
  std::vector<Step> open;
  std::deque<std::vector<Step>> groups;
  bool begun;
};

std::map<Barrier*, Phase> phases;
std::vector<Box> boxes;
std::vector<Arrival> arrivals;
std::vector<Products> products;

Phase& phase_of(Barrier* barrier) {
  const auto found = phases.find(barrier);
  if (found == phases.end()) fail("a barrier that was not begun");
  return found->second;
}

void check_phase(Phase& phase) {
  if (phase.left != 0 || phase.bytes != 0) return;
  phase.left = phase.count;
  phase.parity ^= 1;
  ++events;
}

unsigned address_of(const void* at) { return (unsigned)((const unsigned char*)at - shared) + kSharedBase; }

/// Copies a box of a tensor, with zeros for what is beyond its sizes.
void copy_rows(const Box& box) {
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

void copy(const Box& box) {
  if (box.map == nullptr)
    memcpy(box.to, box.from, box.bytes);
  else
    copy_rows(box);
  Phase& phase = phase_of(box.barrier);
  phase.bytes -= box.bytes;
  if (phase.bytes < 0) fail("more bytes than a barrier expects");
  check_phase(phase);
  ++events;
}

void ask_copy(const Box& box) {
  // One that the barrier does not expect yet may complete its phase too early.
  if (phase_of(box.barrier).bytes < box.bytes) fail("a copy that its barrier does not expect");
  boxes.push_back(box);
}

void count_arrival(Barrier* barrier) {
  Phase& phase = phase_of(barrier);
  if (--phase.left < 0) fail("more arrivals than a barrier has");
  check_phase(phase);
  ++events;
}

/// About half of those that wait, or all where nothing else goes on.
bool go_on_with_arrivals(bool all_wait, unsigned random) {
  std::vector<Arrival> left;
  bool any = false;
  for (Arrival& arrival : arrivals) {
    random = random * 1664525u + 1013904223u;
    if (!all_wait && random >> 31 == 0) {
      left.push_back(std::move(arrival));
      continue;
    }
    for (const Copy& each : arrival.copies) make(each);
    count_arrival(arrival.barrier);
    any = true;
  }
  arrivals = std::move(left);
  return any;
}

bool go_on_with_boxes(bool all_wait, unsigned random) {
  if (boxes.empty() || (!all_wait && random % 2 == 0)) return false;
  const size_t which = random / 2 % boxes.size();
  const Box box = boxes[which];
  boxes.erase(boxes.begin() + which);
  copy(box);
  return true;
}

bool go_on_with_copies(bool all_wait, unsigned random) {
  const bool arrived = go_on_with_arrivals(all_wait, random);
  return go_on_with_boxes(all_wait && !arrived, random) || arrived;
}

void begin_block() {
  phases.clear();
  boxes.clear();
  arrivals.clear();
  products.assign(threads.size(), Products{});
}

void end_block() {
  if (!boxes.empty() || !arrivals.empty()) fail("a block ends before its copies");
  for (const Products& own : products)
    if (!own.open.empty() || !own.groups.empty()) fail("a thread ends before its products");
}

/// A factor in shared memory: element k of row (or column) `number`, which lies along the sum or across it.
float along(unsigned view, int number, int k) {
  const unsigned start = (view & 0x3fffu) << 4;
  return number_of(*(const Half*)byte_at(swizzled(start + number / 8 * 1024 + number % 8 * 128 + k * 2)), has_bf16);
}
float across(unsigned view, int number, int k) {
  const unsigned start = (view & 0x3fffu) << 4, block = (view >> 16 & 0x3fffu) << 4;
  const unsigned at = start + number / 64 * block + k / 8 * 1024 + k % 8 * 128 + number % 64 * 2;
  return number_of(*(const Half*)byte_at(swizzled(at)), has_bf16);
}

/// Whether a step that was asked for writes these sums.
bool is_under_way(const Products& own, float (*sums)[4]) {
  const auto writes = [&](const std::vector<Step>& steps) {
    return std::any_of(steps.begin(), steps.end(), [&](const Step& other) { return other.sums == sums; });
  };
  return writes(own.open) || std::any_of(own.groups.begin(), own.groups.end(), writes);
}

/// Multiplies the oldest groups of a warp's threads until so many are left, which each of them waits for.
void multiply_groups(const Warp& all) {
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
      (lanes[0]->element == Element::kE4m3 ? multiply_float8 : multiply)(first / 32, lanes);
    }
    for (unsigned lane = 0; lane < 32; ++lane) products[first + lane].groups.pop_front();
  }
}

}  // namespace

unsigned char* byte_at(unsigned address) {
  if (address < kSharedBase || address - kSharedBase + 2 > shared_memory.size())
    fail("an address beyond shared memory");
  return shared + (address - kSharedBase);
}

bool use_hopper() {
  beside = {begin_block, go_on_with_copies, end_block};
  return true;
}

void check_same(const Step& step, const Step& first) {
  if (step.b != first.b || step.columns != first.columns || step.a.view != first.a.view || step.adds != first.adds ||
      step.element != first.element)
    fail("threads of a warp ask for different products");
}

void multiply(unsigned warp, Step* const (&lanes)[32]) {
  const Step& first = *lanes[0];
  static float left[16][16];
  static std::vector<float> right;
  right.resize((size_t)first.columns * 16);
  for (int lane = 0; lane < 32; ++lane) {
    const Step& step = *lanes[lane];
    check_same(step, first);
    if (step.a.registers == nullptr) continue;
    for (int part = 0; part < 4; ++part)
      for (int i = 0; i < 2; ++i)
        left[lane / 4 + part % 2 * 8][lane % 4 * 2 + i + part / 2 * 8] =
            number_of((Half)(step.a.registers[part] >> (16 * i)), has_bf16);
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
        step.sums[n][e] = step.sum_before(n, e) + total;
      }
  }
}

void wgmma_fence() { products[current].begun = true; }

void ask(float (*sums)[4], int columns, const Factor& a, unsigned b, bool adds, Element element) {
  Products& own = products[current];
  if (!own.begun) fail("a product before wgmma_fence()");
  Step step{sums, columns, a, b, adds, false, element, {}};
  if (!is_under_way(own, sums)) {
    step.saved = true;
    step.before.assign(&sums[0][0], &sums[0][0] + columns / 2);
    for (int i = 0; i < columns / 2; ++i) (&sums[0][0])[i] = kUnderWay;
  }
  own.open.push_back(std::move(step));
}

void end_group() {
  products[current].groups.push_back(std::move(products[current].open));
  products[current].open.clear();
}

void wait_for_groups(size_t left) {
  products[current].begun = false;
  own_warp().in[own_lane()][0] = left;
  meet("products", multiply_groups);
}

}  // namespace emulated

using emulated::fail;
using emulated::meet;
using emulated::own_lane;
using emulated::own_warp;
using emulated::Warp;

unsigned shared_address(const void* at) { return emulated::address_of(at); }

void warp_barrier() {
  meet("a warp's barrier", [](Warp&) {});
}

int uniform(int value) {
  own_warp().in[own_lane()][0] = (uint32_t)value;
  meet("a uniform value", [](Warp& all) {
    for (int to = 0; to < 32; ++to) all.out[to][0] = (uint32_t)all.in[0][0];
  });
  return (int)own_warp().out[own_lane()][0];
}

void mbarrier_init(Barrier* barrier, int arrivals) { emulated::phases[barrier] = {arrivals, arrivals, 0, 0}; }
void arrive(Barrier* barrier) { emulated::count_arrival(barrier); }
void arrive_after_copies(Barrier* barrier) {
  std::vector<emulated::Copy>& copies = emulated::threads[emulated::current].copies;
  emulated::arrivals.push_back({barrier, std::move(copies)});
  copies.clear();
}
void arrive_and_expect(Barrier* barrier, int bytes) {
  emulated::phase_of(barrier).bytes += bytes;
  arrive(barrier);
}
void mbarrier_wait(Barrier* barrier, int parity) {
  if (emulated::phase_of(barrier).parity != parity) return;
  while (emulated::phase_of(barrier).parity == parity) emulated::give_way();
  ++emulated::events;
}

void tma_load(void* to, const TensorMap* map, Barrier* barrier, int dim, int row, int h, int b) {
  if (shared_address(to) % 128 != 0) fail("a box that is not aligned");
  emulated::ask_copy({(Half*)to, map, barrier, dim, row, h, b, nullptr, (int)map->box_rows * 128});
}
void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier) {
  if (shared_address(to) % 16 != 0 || (uintptr_t)from % 16 != 0 || bytes % 16 != 0) fail("a copy that is not aligned");
  emulated::ask_copy({(Half*)to, nullptr, barrier, 0, 0, 0, 0, from, bytes});
}

void store_matrices(Half* row, const unsigned (&in)[4]) {
  uint64_t(&own)[6] = own_warp().in[own_lane()];
  own[0] = (uint64_t)row;
  for (int m = 0; m < 4; ++m) own[1 + m] = in[m];
  meet("matrices to store", [](Warp& all) {
    for (int from = 0; from < 32; ++from)
      for (int m = 0; m < 4; ++m)
        for (int i = 0; i < 2; ++i)
          ((Half*)all.in[m * 8 + from / 4][0])[from % 4 * 2 + i] = (Half)(all.in[from][1 + m] >> (16 * i));
  });
}

void add_to_memory(float* to, const float (&values)[4]) {
  if ((uintptr_t)to % 16 != 0) fail("floats to add to that are not aligned");
  for (int i = 0; i < 4; ++i) to[i] += values[i];
}

unsigned tile_view(const Half* tile, int rows) {
  if (shared_address(tile) % 1024 != 0) fail("a tile that is not aligned");
  return (shared_address(tile) & 0x3ffffu) >> 4 | (unsigned)(rows * 128) >> 4 << 16;
}
