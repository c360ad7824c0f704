#include "backend/kernels/hopper/text.hpp"

#include <array>
#include <string>
#include <utility>

#include "backend/cuda/kernel_text.hpp"
#include "backend/kernels/hopper/shapes.hpp"
#include "backend/kernels/workspace/arguments.hpp"
#include "base/canonical_bytes.hpp"

namespace scoremod::backend::kernels {
namespace {

constexpr std::string_view kHopperPrimitives = "backend/kernels/hopper/primitives.cuh";

/// `count` numbers of registers in an instruction, from `first` on.
std::string register_numbers(std::int64_t first, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) text += concat(i == 0 ? "%" : ", %", first + i);
  return text;
}

/// A warpgroup's product with this number of columns; a thread has half as many sums.
std::string product_text(DType dtype, std::int64_t columns) {
  const std::int64_t sums = columns / 2;
  std::string operands;
  for (std::int64_t i = 0; i < sums; ++i) operands += concat(i == 0 ? "" : ", ", "\"+f\"(d[", i / 4, "][", i % 4, "])");
  return cuda::fill(cuda::part(cuda::file_text(kHopperPrimitives), "product"),
                    {{"columns", columns},
                     {"type", dtype == DType::kBF16 ? "bf16.bf16" : "f16.f16"},
                     {"sums", register_numbers(0, sums)},
                     {"operands", operands},
                     {"quad", register_numbers(sums, 4)},
                     {"r0", register_numbers(sums, 1)},
                     {"r1", register_numbers(sums + 1, 1)},
                     {"r2", register_numbers(sums + 2, 1)},
                     {"r4", register_numbers(sums + 4, 1)},
                     {"r5", register_numbers(sums + 5, 1)}});
}

}  // namespace

void fill_hopper(Holes& holes, const AttentionProblem& problem, Direction direction, const TileShape& shape) {
  static constexpr std::array<const char*, 3> kDqOrders{"kFenceAtOnce", "kLateFence", "kEarlyAdditions"};
  holes.set("key_stages", shape.key_stages);
  holes.set("box_rows", kHopperBoxRows);
  holes.set("query_stages", hopper_query_stages(shape, problem.dim_qk, problem.dim_v));
  holes.set("loads_bias", shape.loaded_bias ? "true" : "false");
  holes.set("dq_order", kDqOrders[static_cast<std::size_t>(shape.dq_order)]);
  std::string products;
  CanonicalWriter from;
  from.integer(static_cast<std::int64_t>(problem.dtype));
  for (const std::int64_t columns : hopper_product_columns(problem, direction, shape)) {
    products += product_text(problem.dtype, columns);
    from.integer(columns);
  }
  holes.set_long("product", std::move(products), from.written());
}

}  // namespace scoremod::backend::kernels
