#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "backend/backend.hpp"

namespace scoremod::backend::cudnn {

/// What was seen of a form: a way to write something in cuDNN's graph language.
enum class FormVerdict : std::uint8_t {
  kUnknown,  ///< never tried on this architecture and version: not used
  kRight,    ///< agreed with float64 on a device in every setting
  kWrong,    ///< accepted, and computed something else in at least one setting
  kRefused,  ///< cuDNN said no
  kCrashed,  ///< took the process down
};
const char* to_string(FormVerdict verdict);

/// Which part of the explorer's settings speaks for a problem. cuDNN runs a single query row by other kernels, and
/// other forms are wrong there.
enum class RowClass : std::uint8_t { kManyRows, kOneRow };

/// What the form explorer saw on one architecture with one cuDNN version. The lowering uses a form only when it is
/// kRight.
class FormTable {
 public:
  /// Reads the rows of an architecture ("sm_90") and a cuDNN version ("9.19.0") from the explorer's JSON; a table
  /// without entries when it has none. A form is kRight in a direction when some row says right and none says wrong or
  /// crashed; the worst verdict counts. Throws Error(kInvalidArgument) for text that is no such table.
  static FormTable parse(std::string_view json, std::string_view architecture, std::string_view cudnn_version,
                         RowClass rows);

  FormVerdict find(std::string_view form, Direction direction) const;
  /// Median milliseconds at the explorer's timed shape; 0 where it was not timed.
  double milliseconds(std::string_view form, Direction direction) const;
  std::size_t size() const { return entries_.size(); }
  /// Whether the rows were seen on the architecture that the table was asked for. Those of another one say what is
  /// worth trying, and prove nothing: a lowering must be admitted on the device before it is used.
  bool verified() const { return verified_; }
  void set_verified(bool verified) { verified_ = verified; }

 private:
  struct Entry {
    FormVerdict verdict = FormVerdict::kUnknown;
    double milliseconds = 0;
  };
  std::map<std::pair<std::string, Direction>, Entry> entries_;
  bool verified_ = true;
};

/// The table that ships with the library, for a device's architecture and the cuDNN that is loaded. An architecture
/// without one gets sm_90's of that version, unverified. Empty for a version that was never explored: which graphs
/// crash it is not known.
FormTable shipped_form_table(std::string_view architecture, std::string_view cudnn_version, RowClass rows);

}  // namespace scoremod::backend::cudnn
