#include "runtime/shared_bytes.hpp"

#include <algorithm>
#include <numeric>

namespace scoremod::runtime {
namespace {

/// Distances in bytes: sums of two extents of up to 2^63 each.
__extension__ using Bytes = __int128;

/// step * i for every i in [0, count].
struct Term {
  std::int64_t step = 0, count = 0;
};

Bytes ceil_div(Bytes x, Bytes y) { return x <= 0 ? -(-x / y) : (x + y - 1) / y; }

/// Whether a sum of one number of each term can lie in a window.
///
/// Elements of x and y meet where address(x) + sum of x's steps - address(y) - sum of y's steps lies in a window of
/// some bytes. With y's indices counted from their ends every step is positive.
class SumInWindow {
 public:
  void add(std::int64_t step, std::int64_t count) {
    if (step == 0 || count == 0) return;
    const auto same = std::find_if(terms(), end(), [&](const Term& term) { return term.step == step; });
    if (same == end()) terms_[count_++] = {step, 0};
    same->count += count;
  }

  bool any(Bytes lowest, Bytes highest) {
    std::sort(terms(), end(), [](const Term& a, const Term& b) { return a.step > b.step; });
    // Steps that the window bridges only make it wider.
    while (count_ > 0 && terms_[count_ - 1].step <= highest - lowest + 1) {
      --count_;
      lowest -= reach_of(terms_[count_]);
    }
    Bytes reach = 0;
    std::int64_t divisor = 0;
    for (std::size_t i = count_; i-- > 0;) {
      reach_[i] = reach += reach_of(terms_[i]);
      divisor_[i] = divisor = std::gcd(divisor, terms_[i].step);
    }
    return any_from(0, lowest, highest);
  }

 private:
  static Bytes reach_of(const Term& term) { return static_cast<Bytes>(term.step) * term.count; }
  Term* terms() { return terms_.data(); }
  Term* end() { return terms_.data() + count_; }

  /// With the terms from the i-th on. The steps of one tensor nest, so that of each term few numbers leave a window
  /// that the smaller ones reach.
  bool any_from(std::size_t i, Bytes lowest, Bytes highest) const {
    if (highest < 0) return false;
    if (lowest <= 0) return true;  // every index 0
    if (i == count_ || lowest > reach_[i]) return false;
    if (highest >= reach_[i]) return true;  // every index at its end
    if (ceil_div(lowest, divisor_[i]) * divisor_[i] > highest) return false;
    const Term& term = terms_[i];
    const Bytes rest = i + 1 == count_ ? 0 : reach_[i + 1];
    const Bytes last = std::min<Bytes>(term.count, highest / term.step);
    for (Bytes at = std::max<Bytes>(0, ceil_div(lowest - rest, term.step)); at <= last; ++at) {
      if (any_from(i + 1, lowest - at * term.step, highest - at * term.step)) return true;
    }
    return false;
  }

  std::array<Term, 2 * kMaxTableRank> terms_{};
  std::size_t count_ = 0;
  std::array<Bytes, 2 * kMaxTableRank> reach_{};           ///< the largest sum of the terms from this one on
  std::array<std::int64_t, 2 * kMaxTableRank> divisor_{};  ///< the greatest common divisor of their steps
};

}  // namespace

bool share_bytes(const TensorUse& x, const TensorUse& y) {
  SumInWindow sum;
  Bytes extent_of_y = 0;
  const auto bytes_of = [](const TensorUse& tensor, std::size_t d) {
    return tensor.strides[d] * static_cast<std::int64_t>(tensor.element_bytes);
  };
  for (std::size_t d = 0; d < x.rank; ++d) sum.add(bytes_of(x, d), x.shape[d] - 1);
  for (std::size_t d = 0; d < y.rank; ++d) {
    sum.add(bytes_of(y, d), y.shape[d] - 1);
    extent_of_y += static_cast<Bytes>(bytes_of(y, d)) * (y.shape[d] - 1);
  }
  const Bytes distance = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(y.data)) -
                         static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(x.data)) + extent_of_y;
  return sum.any(distance - static_cast<Bytes>(x.element_bytes) + 1,
                 distance + static_cast<Bytes>(y.element_bytes) - 1);
}

}  // namespace scoremod::runtime
