#pragma once

#include <memory>

#include "scoremod/inputs.hpp"

#include "bench_case.hpp"

namespace scoremod::measure {

/// The inputs of a case: random, or as its problem file says. Cases share equal inputs.
struct CaseInputs {
  std::shared_ptr<const ProblemInputs> tensors;   ///< q, k, v and d_o
  std::shared_ptr<const ProblemInputs> operands;  ///< the operands only
};

/// Makes inputs, and keeps the last ones: numbers for a long problem take seconds, and cases that follow each other
/// mostly have the same sizes.
class InputMaker {
 public:
  /// Throws Error(kInvalidArgument) for a file that is missing, damaged or of another dtype or shape.
  CaseInputs make(const BenchCase& bench_case);

 private:
  /// The source of a part of the inputs.
  struct Source {
    AttentionProblem problem;
    std::vector<InputSpec> inputs;
    std::map<std::string, std::string> same_inputs;
    std::filesystem::path folder;
    std::uint64_t seed = 0;

    bool operator==(const Source&) const = default;
  };

  static Source tensors_of(const BenchCase& bench_case);
  static Source operands_of(const BenchCase& bench_case);
  static std::shared_ptr<const ProblemInputs> make(const Source& source);
  /// Makes a part anew unless it is of the same source.
  static void renew(std::shared_ptr<const ProblemInputs>& part, Source& of, Source wanted);

  Source tensors_, operands_;
  CaseInputs last_;
};

}  // namespace scoremod::measure
