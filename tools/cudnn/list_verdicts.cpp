#include "tools/cudnn/list_verdicts.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/fail.hpp"
#include "plans/record_file.hpp"
#include "verification/verdict.hpp"

namespace scoremod::explorer {
namespace {

using Json = nlohmann::ordered_json;

plans::RecordFile read_record(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in) fail_environment("can't read ", path.string());
  return plans::decode(std::as_bytes(std::span(bytes)));
}

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

bool belongs(const plans::Record& record, const std::string& architecture, const std::string& cudnn) {
  return record.kind == plans::RecordKind::kVerification && record.engine == "cudnn " + cudnn &&
         record.architecture.starts_with(architecture + " ") && text_of(record.payload) == verification::kRightVerdict;
}

}  // namespace

int list_verdicts(const std::string& store, const std::string& architecture, const std::string& cudnn,
                  const std::string& machine, const std::string& commit, const std::string& output) {
  std::error_code failure;
  const std::filesystem::directory_iterator files(store, failure);
  if (failure) fail_environment("can't list ", store, ": ", failure.message());
  std::map<std::string, std::string> labels;  // by structural key and engine
  for (const std::filesystem::directory_entry& entry : files) {
    if (!entry.path().filename().string().starts_with(to_string(plans::RecordKind::kVerification))) continue;
    const plans::RecordFile file = read_record(entry.path());
    if (!file.damage.empty()) fail_argument(entry.path().string(), " is damaged: ", file.damage, "; delete it");
    const std::string key = text_of(file.record.key);
    // The verdict of a structure with any engine has the structural key alone, which ends a line.
    if (belongs(file.record, architecture, cudnn) && !key.ends_with('\n')) labels[key] = file.record.label;
  }
  std::ofstream out(output);
  out << "{\n  \"machine\": " << Json(machine) << ",\n  \"commit\": " << Json(commit) << ",\n  \"results\": [";
  const char* separator = "\n";
  for (const auto& [key, label] : labels) {
    const std::size_t end = key.rfind('\n') + 1;
    out << separator << "    "
        << Json{{"label", label},
                {"engine", key.substr(end)},
                {"verdict", verification::kRightVerdict},
                {"key", key.substr(0, end)}};
    separator = ",\n";
  }
  out << "\n  ]\n}\n";
  out.close();
  if (!out) fail_environment("can't write ", output);
  return static_cast<int>(labels.size());
}

}  // namespace scoremod::explorer
