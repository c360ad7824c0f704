#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/check.hpp"
#include "scoremod/dtype.hpp"
#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

struct SuiteProgress {
  std::string problem;   ///< the name of the one that has begun or is done
  bool begins = false;   ///< else it is done
  std::size_t done = 0;  ///< problems so far
  std::size_t total = 0;
};

struct CheckSuiteOptions {
  CompileOptions compile;  ///< which backends may run the problems; its threads are of no meaning here
  int random_problems = 100;
  /// The seed of the problems and their inputs. If absent, a new one is taken and reported. Required with parts.
  std::optional<std::uint64_t> seed;
  /// Only problems whose name contains this.
  std::string filter;
  /// Only every parts-th problem, beginning with the part-th (from 0): so that several processes share a suite.
  int part = 0;
  int parts = 1;
  /// The dtypes of q, k, v and o: some of f32, f16, bf16, e4m3 and e5m2. Empty means f16 and bf16.
  std::vector<DType> dtypes;
  int threads = 0;  ///< problems that are checked at the same time; 0 means one for each core
  /// Called when a problem begins and when it is done, from several threads, one at a time. check_suite() rethrows its
  /// exceptions, as soon as the problems that have begun are done.
  std::function<void(const SuiteProgress& progress)> on_progress;
};

enum class SuiteVerdict : std::uint8_t {
  kRight,    ///< every output within its tolerance, no other memory written
  kWrong,    ///< an output beyond its tolerance or not written, or memory written that is not an output's
  kRefused,  ///< the backend says that it does not support the problem
  kError,    ///< the check threw something else
};
/// "right", "wrong", "refused" or "error".
SCOREMOD_API const char* to_string(SuiteVerdict verdict);

enum class SuiteDirection : std::uint8_t { kForward, kBackward };
/// "forward" or "backward".
SCOREMOD_API const char* to_string(SuiteDirection direction);

/// One output of one problem.
struct SuiteOutput {
  OutputCheck check;
  /// The relative error of this output of plain attention: the same backend without a modifier, on the same q, k, v and
  /// d_o. Its scale gives the scores the standard deviation (within a row, over the kept keys) of the modified ones.
  /// For an operand's gradient it is the larger error of dq and dk. Absent for lse, and if plain attention could not
  /// run or its output is not above rounding.
  std::optional<double> plain_attention_error;

  /// In the Euclidean norm, relative to the oracle's; nothing when that is not above rounding.
  SCOREMOD_API std::optional<double> relative_error() const;
  /// relative_error() by plain_attention_error.
  SCOREMOD_API std::optional<double> ratio_to_plain_attention() const;
  /// Whether relative_error() is at most twice plain_attention_error and the relative rounding band; true where these
  /// are not known.
  SCOREMOD_API bool is_near_plain_attention() const;
};

/// One direction of one problem.
struct SuiteResult {
  std::string name;  ///< "zoo/MODIFIERS/SHAPE/DTYPE" or "random/NUMBER"
  AttentionProblem problem;
  SuiteDirection direction = SuiteDirection::kForward;
  SuiteVerdict verdict = SuiteVerdict::kRight;
  std::string backend;               ///< that ran it; empty when refused or in error
  std::vector<std::string> reasons;  ///< why not right
  std::vector<SuiteOutput> outputs;  ///< empty when refused or in error

  /// The output that comes nearest to its tolerance, or is furthest beyond it; nullptr when there is none.
  SCOREMOD_API const SuiteOutput* worst() const;
};

struct SuiteReport {
  std::string backend;  ///< which backends the options allow: a name, several with commas between, or a kind of memory
  std::uint64_t seed = 0;
  double seconds = 0;
  std::vector<SuiteResult> results;  ///< by problem, forward first

  SCOREMOD_API std::size_t count(SuiteVerdict verdict) const;
};

/// Checks a backend, as check() does, forward and backward. The problems are the whole zoo in several shapes (see
/// src/check/zoo_cases.hpp) and random programs in random problems (src/check/random_problem.hpp). They depend on the
/// options and the seed alone: random problem i has the seed `seed + i`, whatever else is checked.
///
/// If a backend refuses the backward or fails in it, the forward is checked alone. An exception of a check becomes a
/// verdict. Throws Error(kInvalidArgument) for an unknown backend, a dtype that no problem can have, negative counts,
/// and a filter that leaves nothing.
SCOREMOD_API SuiteReport check_suite(const CheckSuiteOptions& options = {});

}  // namespace scoremod
