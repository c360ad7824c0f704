#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.hpp"

namespace scoremod::backend::cudnn {

/// The verdict on a pattern: a way to write something in cuDNN's graph language.
enum class PatternVerdict : std::uint8_t {
  kUnknown,  ///< never tried on this architecture and version: not used
  kRight,    ///< agreed with float64 on a device in every setting
  kWrong,    ///< accepted, and computed something else in at least one setting
  kRefused,  ///< cuDNN said no
  kCrashed,  ///< took the process down
};
const char* to_string(PatternVerdict verdict);

/// The part of the explorer's settings that applies to a problem. cuDNN runs a single query row by other kernels, and
/// other patterns are wrong there.
enum class RowClass : std::uint8_t { kManyRows, kOneRow };

/// The summary of all of the explorer's rows on one pattern.
struct PatternDecision {
  std::uint32_t name;  ///< the begin of the pattern's name in the table's text of names, which are zero-terminated
  RowClass rows;
  Direction direction;
  PatternVerdict verdict;
  double milliseconds;  ///< 0 where it was not timed
};

/// The device and version that the rows of a table come from.
struct PatternOrigin {
  std::string architecture;   ///< "sm_90"
  std::string cudnn_version;  ///< "9.19.0"
};

/// The pattern explorer's results on one architecture with one cuDNN version. The lowering uses a pattern only when it
/// is kRight. Copies share their data.
class PatternTable {
 public:
  PatternTable() = default;

  /// Reads the rows of an architecture ("sm_90") and a cuDNN version ("9.19.0") from the explorer's JSON; a table
  /// without entries when it has none. A pattern is kRight in a direction when some row says right and none says wrong
  /// or crashed; the worst verdict counts. Throws Error(kInvalidArgument) for text that is no such table.
  static PatternTable parse(std::string_view json, std::string_view architecture, std::string_view cudnn_version,
                            RowClass rows);

  /// Decisions that live as long as the process, sorted by rows, direction and name; those of `rows` are taken.
  PatternTable(std::span<const PatternDecision> decisions, const char* names, RowClass rows, PatternOrigin origin,
               bool verified);

  PatternVerdict find(std::string_view pattern, Direction direction) const;
  /// Median milliseconds at the explorer's timed shape; 0 where it was not timed.
  double milliseconds(std::string_view pattern, Direction direction) const;
  std::size_t size() const { return decisions_.size(); }
  /// The pattern of a decision, and the decisions in the order of direction and name.
  std::string_view name(const PatternDecision& decision) const { return names_ + decision.name; }
  std::span<const PatternDecision> decisions() const { return decisions_; }
  /// Whether the rows come from the architecture and the cuDNN version that the table was asked for. Rows of others
  /// suggest what to try, and prove nothing: a lowering must be verified on the device before it is used.
  bool verified() const { return verified_; }
  const PatternOrigin& origin() const { return origin_; }
  /// For people: where the rows were seen, such as "sm_90 with cuDNN 9.19.0".
  std::string seen_on() const;

 private:
  const PatternDecision* decision(std::string_view pattern, Direction direction) const;

  /// The result of parse().
  struct Parsed {
    std::string names;
    std::vector<PatternDecision> decisions;
  };
  std::shared_ptr<const Parsed> parsed_;
  std::span<const PatternDecision> decisions_;
  const char* names_ = "";
  PatternOrigin origin_;
  bool verified_ = true;
};

/// The table that ships with the library, for a device's architecture and the cuDNN that is loaded. If that pair was
/// not explored, it is the nearest explored version's of the same architecture, or else of sm_90, unverified. Empty for
/// a cuDNN of another major version than any that was explored.
PatternTable shipped_pattern_table(std::string_view architecture, std::string_view cudnn_version, RowClass rows);

}  // namespace scoremod::backend::cudnn
