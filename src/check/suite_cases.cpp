#include "check/suite_cases.hpp"

#include "base/fail.hpp"
#include "check/random_problem.hpp"
#include "check/zoo_cases.hpp"

namespace scoremod::checking {
namespace {

/// Options that a GPU backend supports, so that a refusal comes from the program alone.
RandomProblemOptions problem_options(const std::vector<DType>& dtypes, bool large) {
  RandomProblemOptions options;
  options.max_scores = large ? 300000 : 60000;
  options.dtypes = dtypes;
  options.lengths = {1, 2, 17, 64, 65, 100, 127, 128, 130, 192, 200, 256, 333, 400};
  options.head_dims = {8, 16, 32, 40, 64, 64, 64, 96, 128, 128, 192, 256};
  options.row_alignment = 8;
  options.backward_probability = 1;
  options.shifted_value_probability = 0.4;
  options.row_class_probability = 0.3;
  options.one_query_probability = 0.15;
  options.few_rows_probability = 0.1;
  options.lengths_probability = 0.15;
  options.sink_probability = 0.15;
  options.dropout_probability = 0.15;
  options.max_logit_probability = 0.15;
  options.ragged_probability = 0.08;
  options.paged_probability = 0.05;
  options.gradient_layout_probability = 0.15;
  options.output_dtype_probability = 0.05;
  options.float8_keys_probability = 0.05;
  options.block_scales_probability = 0.2;
  return options;
}

CheckCase random_case(const std::vector<DType>& dtypes, std::uint64_t seed, int number) {
  // The oracle's time grows with the scores, so that few problems are large.
  CheckCase made = random_problem(seed, problem_options(dtypes, number % 8 == 0));
  made.name = concat("random/", number);
  return made;
}

void check_options(const CheckSuiteOptions& options) {
  if (options.random_problems < 0) {
    fail_argument("expected 0 or more random problems, found ", options.random_problems);
  }
  if (options.threads < 0) fail_argument("expected 0 threads (one for each core) or more, found ", options.threads);
  if (options.parts < 1 || options.part < 0 || options.part >= options.parts) {
    fail_argument("expected at least one part, and a part from 0 to below their number; found part ", options.part,
                  " of ", options.parts);
  }
  if (options.parts > 1 && !options.seed) {
    fail_argument("expected a seed for a suite in ", options.parts,
                  " parts, found none: each part would draw its own; ", "give the same one to all");
  }
  for (const DType dtype : options.dtypes) {
    if (!is_floating(dtype))
      fail_argument("expected dtypes among f32, f16, bf16, e4m3 and e5m2, found ", to_string(dtype));
  }
}

}  // namespace

std::vector<CheckCase> suite_cases(const CheckSuiteOptions& options) {
  check_options(options);
  std::vector<DType> dtypes = options.dtypes, random_dtypes = options.dtypes;
  if (dtypes.empty()) {
    dtypes = {DType::kF16, DType::kBF16};
    random_dtypes = {DType::kF16, DType::kBF16, DType::kF16, DType::kBF16, DType::kF32};
  }
  if (!options.seed) fail_bug("the problems of a suite were asked for without a seed");
  const std::uint64_t seed = *options.seed;
  std::vector<CheckCase> cases = zoo_cases(dtypes);
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].seed = seed + i;
  for (int i = 0; i < options.random_problems; ++i) {
    cases.push_back(random_case(random_dtypes, seed + static_cast<std::uint64_t>(i), i));
  }
  std::erase_if(cases, [&](const CheckCase& one) { return one.name.find(options.filter) == std::string::npos; });
  if (cases.empty()) {
    fail_argument("expected a part of a problem's name, such as 'zoo/causal' or 'random/7', found '", options.filter,
                  "', which is in none");
  }
  std::size_t number = 0;
  const auto parts = static_cast<std::size_t>(options.parts);
  std::erase_if(cases, [&](const CheckCase&) { return number++ % parts != static_cast<std::size_t>(options.part); });
  return cases;
}

}  // namespace scoremod::checking
