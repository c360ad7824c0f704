#include "blas_products.hpp"

#include <dlfcn.h>

#include <cblas.h>

#include "scoremod/error.hpp"

namespace scoremod::bench {
namespace {

/// OpenBLAS, loaded when it is first needed: a machine with a GPU may have none.
struct OpenBlas {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&openblas_set_num_threads) set_num_threads = nullptr;
  decltype(&openblas_get_config) config = nullptr;
  decltype(&openblas_get_corename) core_name = nullptr;
  std::string missing;  ///< the loader's text; empty when all is there
};

template <class Function>
void find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) missing = dlerror();
}

OpenBlas load() {
  OpenBlas blas;
  void* library = dlopen("libopenblas.so.0", RTLD_NOW);
  if (library == nullptr) {
    blas.missing = dlerror();
    return blas;
  }
  find(library, "cblas_sgemm", blas.sgemm, blas.missing);
  find(library, "openblas_set_num_threads", blas.set_num_threads, blas.missing);
  find(library, "openblas_get_config", blas.config, blas.missing);
  find(library, "openblas_get_corename", blas.core_name, blas.missing);
  return blas;
}

const OpenBlas& loaded() {
  static const OpenBlas blas = load();
  return blas;
}

const OpenBlas& openblas() {
  if (loaded().missing.empty()) return loaded();
  throw Error(ErrorCode::kEnvironment, "no OpenBLAS: " + loaded().missing);
}

/// C = op(A) op(B), all row-major and dense.
void multiply(bool a_transposed, bool b_transposed, int rows, int columns, int depth, const float* a, const float* b,
              float* c) {
  openblas().sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans,
                   rows, columns, depth, 1, a, a_transposed ? rows : depth, b, b_transposed ? depth : columns, 0, c,
                   columns);
}

std::vector<float> filled(std::int64_t rows, std::int64_t columns) {
  return std::vector<float>(static_cast<std::size_t>(rows * columns), 0.125f);
}

}  // namespace

BlasProducts::BlasProducts(const BenchCase& bench_case) : case_(bench_case) {
  const AttentionProblem& p = case_.problem;
  const std::int64_t heads = p.batch * p.heads_q;
  q_ = filled(heads * p.seq_q, p.dim_qk);
  k_ = filled(heads * p.seq_kv, p.dim_qk);
  v_ = filled(heads * p.seq_kv, p.dim_v);
  o_ = filled(heads * p.seq_q, p.dim_v);
  scores_ = filled(p.seq_q, p.seq_kv);
  if (case_.direction == Direction::kForward) return;
  adjoints_ = scores_;
  dq_ = q_;
  dk_ = k_;
  dv_ = v_;
}

void BlasProducts::run() {
  const AttentionProblem& p = case_.problem;
  const auto rows = static_cast<int>(p.seq_q), keys = static_cast<int>(p.seq_kv);
  const auto qk = static_cast<int>(p.dim_qk), v = static_cast<int>(p.dim_v);
  for (std::int64_t head = 0; head < p.batch * p.heads_q; ++head) {
    const std::int64_t q_at = head * p.seq_q * p.dim_qk, k_at = head * p.seq_kv * p.dim_qk;
    const std::int64_t o_at = head * p.seq_q * p.dim_v, v_at = head * p.seq_kv * p.dim_v;
    multiply(false, true, rows, keys, qk, &q_[static_cast<std::size_t>(q_at)], &k_[static_cast<std::size_t>(k_at)],
             scores_.data());
    if (case_.direction == Direction::kForward) {
      multiply(false, false, rows, v, keys, scores_.data(), &v_[static_cast<std::size_t>(v_at)],
               &o_[static_cast<std::size_t>(o_at)]);
      continue;
    }
    multiply(false, true, rows, keys, v, &o_[static_cast<std::size_t>(o_at)], &v_[static_cast<std::size_t>(v_at)],
             adjoints_.data());
    multiply(true, false, keys, v, rows, scores_.data(), &o_[static_cast<std::size_t>(o_at)],
             &dv_[static_cast<std::size_t>(v_at)]);
    multiply(true, false, keys, qk, rows, adjoints_.data(), &q_[static_cast<std::size_t>(q_at)],
             &dk_[static_cast<std::size_t>(k_at)]);
    multiply(false, false, rows, qk, keys, adjoints_.data(), &k_[static_cast<std::size_t>(k_at)],
             &dq_[static_cast<std::size_t>(q_at)]);
  }
}

std::string BlasProducts::version() {
  if (!loaded().missing.empty()) return "none";
  return std::string(loaded().config()) + ", kernels " + loaded().core_name();
}

void BlasProducts::set_threads(int threads) { openblas().set_num_threads(threads); }

}  // namespace scoremod::bench
