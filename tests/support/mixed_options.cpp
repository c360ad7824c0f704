#include "support/mixed_options.hpp"

namespace scoremod::test {

checking::RandomProblemOptions mixed_options() {
  checking::RandomProblemOptions options;
  options.lengths_probability = options.sink_probability = options.dropout_probability = 0.3;
  options.max_logit_probability = options.ragged_probability = options.paged_probability = 0.2;
  options.gradient_layout_probability = options.output_dtype_probability = options.float8_keys_probability = 0.2;
  options.block_scales_probability = 0.3;
  return options;
}

}  // namespace scoremod::test
