#include "support/emulated_device.hpp"

namespace scoremod::test {

// The primitives that follow from a text's own constants; tests/emulated has the others.
std::string_view emulated_primitives() {
  return R"(
namespace emulated {
// Synchronizes the block's threads except producers.
inline bool block_meet(bool condition) {
  return kProducers == 0 ? meet_all(condition) : meet_at(1, kWarps * 32, condition);
}
}  // namespace emulated

#define threadIdx (emulated::Dim{emulated::current})
#define blockIdx (emulated::Dim{emulated::block})
#define gridDim (emulated::Dim{emulated::block_count})
#define SCOREMOD_KERNEL(threads, blocks) static void
#define SCOREMOD_MEMBER inline
#define SCOREMOD_OUT_OF_LINE static
#define SCOREMOD_ARGUMENT const Arguments&
#define SCOREMOD_SHARED(name) unsigned char* const name = emulated::shared

inline void load_matrices(unsigned (&out)[4], const Half* row) { emulated::load_matrices(out, row, false); }
inline void load_matrices_transposed(unsigned (&out)[4], const Half* row) { emulated::load_matrices(out, row, true); }
template <bool kAreBf16 = kBf16>
inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulated::multiply_add(sum, a, b0, b1, kAreBf16);
}
template <int kBytes>
void copy_ahead(void* shared, const void* from, int bytes) { emulated::copy_ahead(shared, from, kBytes, bytes); }
inline void copy_line_ahead(void* shared, const void* from, int bytes) { copy_ahead<16>(shared, from, bytes); }
template <int kBut>
inline void wait_for_copies_but() { emulated::wait_for_copies_but(kBut); }
template <int kTeamWarps>
inline void team_barrier(int team) { emulated::team_meet(team, 32 * kTeamWarps); }
inline void block_barrier() { emulated::block_meet(false); }
inline bool any_of_block(bool condition) { return emulated::block_meet(condition); }
inline unsigned exchange_bits(unsigned value, int lane_distance) {
  float bits;
  memcpy(&bits, &value, 4);
  bits = exchange(bits, lane_distance);
  memcpy(&value, &bits, 4);
  return value;
}
inline void order_memory() {}
inline unsigned long long exchange_word(unsigned long long* word, unsigned long long expected,
                                        unsigned long long instead) {
  const unsigned long long found = *word;
  if (found == expected) *word = instead;
  return found;
}
inline int take_number(int* next) { return (*next)++; }
inline int bit_number(unsigned bit) { return __builtin_ctz(bit); }
inline float load_constant(const float* from) { return *from; }
inline unsigned bits_of(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
/// ex2.approx.ftz: what is not a normal number is 0.
inline float exp2_of(float x) {
  const float value = exp2f(x);
  return value < 0x1p-126f ? 0.0f : value;
}
inline float multiply_add(float x, float y, float z) { return fmaf(x, y, z); }
inline unsigned bf16_pair_of(float low, float high) {
  return emulated::encoded(low, true) | (unsigned)emulated::encoded(high, true) << 16;
}
inline unsigned f16_pair_of(float low, float high) {
  return emulated::encoded(low, false) | (unsigned)emulated::encoded(high, false) << 16;
}
template <bool kAreBf16 = kBf16>
inline unsigned pair_of(float low, float high) {
  return kAreBf16 ? bf16_pair_of(low, high) : f16_pair_of(low, high);
}
inline unsigned bytes_of(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = x | (uint64_t)y << 32;
  unsigned bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}
)";
}

/// The entry of the library: runs a kernel by its name, unless it reads more of its argument than there is. Gives the
/// bytes that a launch copies of the argument; none where no kernel has the name.
std::string_view emulated_entry() {
  return R"(
extern "C" size_t run_kernel(const char* name, const void* argument, size_t argument_bytes, long long blocks,
                             int threads, size_t shared_bytes, unsigned seed, emulated::Encode encode) {
  emulated::begin_program(kBf16, encode);
  const auto matches = [&](const char* kernel) { return strcmp(name, kernel) == 0; };
#define SCOREMOD_RUN(kernel, Given) \
  if (matches(#kernel)) { \
    static const Given* given; \
    given = (const Given*)argument; \
    if (sizeof(Given) <= argument_bytes) emulated::run([] { kernel(*given); }, blocks, threads, shared_bytes, seed); \
    return sizeof(Given); \
  }
)";
}

}  // namespace scoremod::test
