// Primitives of shared/elements.cuh: products, matrices, shuffles and asynchronous copies of a warp's threads.
#include "emulated/state.hpp"

namespace emulated {
namespace {

Half element_of(const Warp& all, int matrix, int row, int column) {
  return ((const Half*)all.in[matrix * 8 + row][0])[column];
}

void load(Warp& all, bool transposed) {
  for (int to = 0; to < 32; ++to)
    for (int m = 0; m < 4; ++m) {
      Half pair[2];
      for (int i = 0; i < 2; ++i)
        pair[i] = transposed ? element_of(all, m, to % 4 * 2 + i, to / 4) : element_of(all, m, to / 4, to % 4 * 2 + i);
      all.out[to][m] = pair[0] | (uint32_t)pair[1] << 16;
    }
}

void multiply_halves(Warp& all, bool bf16) {
  float left[16][16], right[16][8];
  for (int from = 0; from < 32; ++from)
    for (int i = 0; i < 2; ++i) {
      const int row = from / 4, column = from % 4 * 2 + i;
      for (int part = 0; part < 4; ++part)
        left[row + part % 2 * 8][column + part / 2 * 8] = number_of((Half)(all.in[from][part] >> (16 * i)), bf16);
      for (int part = 0; part < 2; ++part)
        right[column + part * 8][row] = number_of((Half)(all.in[from][4] >> (32 * part + 16 * i)), bf16);
    }
  for (int to = 0; to < 32; ++to)
    for (int e = 0; e < 4; ++e) {
      float total = 0.0f;
      for (int k = 0; k < 16; ++k) total += left[to / 4 + e / 2 * 8][k] * right[k][to % 4 * 2 + e % 2];
      memcpy(&all.out[to][e], &total, 4);
    }
}

/// Reads the upper 11 digits of its factors.
void multiply_upper(Warp& all) {
  const auto upper = [](uint32_t bits) { return float_of_bits(bits & 0xffffe000u); };
  double left[16][8], right[8][8];
  for (int from = 0; from < 32; ++from)
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < 2; ++part)
        left[from / 4 + part * 8][from % 4 + half * 4] = upper((uint32_t)all.in[from][part + 2 * half]);
      right[from % 4 + half * 4][from / 4] = upper((uint32_t)(all.in[from][4] >> (32 * half)));
    }
  for (int to = 0; to < 32; ++to)
    for (int e = 0; e < 4; ++e) {
      double total = 0;
      for (int k = 0; k < 8; ++k) total += left[to / 4 + e / 2 * 8][k] * right[k][to % 4 * 2 + e % 2];
      const float rounded = (float)total;
      memcpy(&all.out[to][e], &rounded, 4);
    }
}

void give_factors(const unsigned (&a)[4], unsigned b0, unsigned b1) {
  uint64_t(&in)[6] = own_warp().in[own_lane()];
  for (int i = 0; i < 4; ++i) in[i] = a[i];
  in[4] = b0 | (uint64_t)b1 << 32;
}

/// Makes the thread's copies of groups before `end`.
void make_copies(int end) {
  std::vector<Copy>& copies = threads[current].copies;
  for (const Copy& copy : copies)
    if (copy.group < end) make(copy);
  const auto made = [&](const Copy& copy) { return copy.group < end; };
  copies.erase(std::remove_if(copies.begin(), copies.end(), made), copies.end());
}

}  // namespace

void load_matrices(unsigned (&out)[4], const Half* row, bool transposed) {
  Warp& warp = own_warp();
  const unsigned lane = own_lane();
  warp.in[lane][0] = (uint64_t)row;
  meet(transposed ? "transposed matrices" : "matrices", [&](Warp& all) { load(all, transposed); });
  for (int m = 0; m < 4; ++m) out[m] = warp.out[lane][m];
}

void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool bf16) {
  give_factors(a, b0, b1);
  meet("a product", [&](Warp& all) { multiply_halves(all, bf16); });
  for (int e = 0; e < 4; ++e) sum[e] += float_of_bits(own_warp().out[own_lane()][e]);
}

void copy_ahead(void* shared, const void* from, int multiple, int bytes) {
  if ((uintptr_t)shared % multiple != 0 || (uintptr_t)from % multiple != 0) fail("a copy that is not aligned");
  Thread& thread = threads[current];
  thread.copies.push_back({shared, from, multiple, bytes, thread.group});
}

void wait_for_copies_but(int groups) { make_copies(threads[current].group - groups); }

}  // namespace emulated

using emulated::meet;
using emulated::own_lane;
using emulated::own_warp;
using emulated::Warp;

// Cuts off what a sum is too short for.
void multiply_add_upper(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulated::give_factors(a, b0, b1);
  meet("a product of upper digits", emulated::multiply_upper);
  for (int e = 0; e < 4; ++e) {
    const float product = emulated::float_of_bits(own_warp().out[own_lane()][e]);
    const double total = (double)sum[e] + product;
    const float rounded = (float)total;
    sum[e] = fabs((double)rounded) > fabs(total) ? nextafterf(rounded, 0.0f) : rounded;
  }
}

void end_copies() { ++emulated::threads[emulated::current].group; }
void wait_for_copies() { emulated::make_copies(emulated::threads[emulated::current].group + 1); }

unsigned ballot(bool condition) {
  own_warp().in[own_lane()][0] = condition;
  meet("a ballot", [](Warp& all) {
    uint32_t bits = 0;
    for (int from = 0; from < 32; ++from) bits |= (uint32_t)all.in[from][0] << from;
    for (int to = 0; to < 32; ++to) all.out[to][0] = bits;
  });
  return own_warp().out[own_lane()][0];
}

float exchange(float value, int lane_distance) {
  uint64_t(&in)[6] = own_warp().in[own_lane()];
  in[0] = 0;
  memcpy(&in[0], &value, 4);
  in[1] = lane_distance;
  meet("an exchange", [](Warp& all) {
    for (int to = 0; to < 32; ++to) all.out[to][0] = (uint32_t)all.in[to ^ all.in[to][1]][0];
  });
  return emulated::float_of_bits(own_warp().out[own_lane()][0]);
}

int from_lane(int value, int from) {
  uint64_t(&in)[6] = own_warp().in[own_lane()];
  in[0] = (uint32_t)value;
  in[1] = from;
  meet("another lane's value", [](Warp& all) {
    for (int to = 0; to < 32; ++to) all.out[to][0] = (uint32_t)all.in[all.in[to][1]][0];
  });
  return (int)own_warp().out[own_lane()][0];
}
