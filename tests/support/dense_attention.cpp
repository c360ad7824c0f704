#include "support/dense_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.hpp"
#include "problem/strided_tensor.hpp"

namespace scoremod::test {

DenseResult dense_attention(const AttentionProblem& p, const DenseTensors& x, const DenseModifier& modifier) {
  DenseResult r{std::vector<double>(p.batch * p.heads_q * p.seq_q * p.dim_v),
                {},
                std::vector<double>(x.q.size()),
                std::vector<double>(x.k.size()),
                std::vector<double>(x.v.size()),
                std::vector<double>(modifier.sink ? p.heads_q : 0),
                {}};
  const double scale = p.effective_scale();
  for (std::int64_t row = 0; row < p.batch * p.heads_q * p.seq_q; ++row) {
    const std::int64_t b = row / (p.heads_q * p.seq_q), h = row / p.seq_q % p.heads_q, i = row % p.seq_q;
    const std::int64_t first = (b * p.heads_kv + h / (p.heads_q / p.heads_kv)) * p.seq_kv;
    const double *q = &x.q[row * p.dim_qk], *k = &x.k[first * p.dim_qk], *v = &x.v[first * p.dim_v];
    std::vector<double> s(p.seq_kv), w(p.seq_kv), dw(p.seq_kv);
    const double sink = modifier.sink ? std::exp(modifier.sink(h)) : 0;
    double sum = sink, largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < p.seq_kv; ++j) {
      for (std::int64_t d = 0; d < p.dim_qk; ++d) s[j] += scale * q[d] * k[j * p.dim_qk + d];
      if (!modifier.keep(b, h, i, j)) continue;
      largest = std::max(largest, modifier.value(s[j], b, h, i, j));
      sum += w[j] = std::exp(modifier.value(s[j], b, h, i, j));
    }
    r.max_logit.push_back(largest);
    r.lse.push_back(std::log(sum));
    double delta = 0;
    for (std::int64_t j = 0; j < p.seq_kv; ++j) {
      if (w[j] == 0) continue;
      w[j] /= sum;
      const double share = modifier.share ? modifier.share(b, h, i, j) : 1;
      for (std::int64_t d = 0; d < p.dim_v; ++d) {
        const double d_o = x.d_o.empty() ? 0 : x.d_o[row * p.dim_v + d];
        r.o[row * p.dim_v + d] += share * w[j] * v[j * p.dim_v + d];
        r.dv[first * p.dim_v + j * p.dim_v + d] += share * w[j] * d_o;
        dw[j] += share * d_o * v[j * p.dim_v + d];
      }
      delta += w[j] * dw[j];
    }
    if (modifier.sink) r.d_sink[h] -= sink / sum * delta;
    for (std::int64_t j = 0; j < p.seq_kv; ++j) {
      const double ds = w[j] == 0 ? 0 : scale * w[j] * (dw[j] - delta) * modifier.slope(s[j], b, h, i, j);
      for (std::int64_t d = 0; d < p.dim_qk; ++d) {
        r.dq[row * p.dim_qk + d] += ds * k[j * p.dim_qk + d];
        r.dk[(first + j) * p.dim_qk + d] += ds * q[d];
      }
    }
  }
  return r;
}

std::vector<double> to_dense(const std::vector<std::byte>& bytes, DType dtype, const std::vector<std::int64_t>& shape,
                             const std::vector<std::int64_t>& strides) {
  std::vector<double> values;
  problem::StridedTensor{"", dtype, shape, strides}.for_each_offset(
      [&](std::int64_t, std::int64_t offset) { values.push_back(load_element<double>(bytes.data(), dtype, offset)); });
  return values;
}

}  // namespace scoremod::test
