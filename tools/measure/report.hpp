#pragma once

#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "measurement.hpp"

namespace scoremod::measure {

/// The place, the versions and the subject of a report.
struct ReportOrigin {
  std::string machine;  ///< in the words of the command line
  std::string commit;   ///< empty: git's answer for the current folder
  /// The versions of libraries beside scoremod itself, by name.
  nlohmann::ordered_json versions = nlohmann::ordered_json::object();
};

/// Which of its columns a table has beside those of every measurement: the others would be empty.
struct TableColumns {
  bool reference = false;  ///< another implementation is measured beside
  bool device = false;     ///< the costs of plans, and of calls on the host
};

/// The head of the table, and a line of it.
std::string table_head(const TableColumns& columns);
std::string table_line(const Measurement& result, const TableColumns& columns);

/// {machine, versions, commit, options, plans, results}, described in docs/reference/benchmark_files.md.
nlohmann::ordered_json report_json(std::span<const Measurement> results, const PlanReport& plans,
                                   const MeasurementOptions& options, const ReportOrigin& origin);

/// The report as text.
std::string report_text(const nlohmann::ordered_json& report);

}  // namespace scoremod::measure
