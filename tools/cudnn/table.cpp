#include "tools/cudnn/table.hpp"

#include <algorithm>
#include <fstream>
#include <map>

#include "base/fail.hpp"

namespace scoremod::acceptance {
namespace {

std::string name_of(const Table& row) {
  return concat(row.at("modifier").get<std::string>(), " ", row.at("direction").get<std::string>(), " ",
                row.at("architecture").get<std::string>());
}

std::string answer_of(const Table& row) {
  std::string text = row.at("verdict").get<std::string>();
  if (row.contains("reason")) text += concat(" (", row["reason"].get<std::string>(), ")");
  if (row.contains("workspace_bytes")) text += concat(", workspace ", row["workspace_bytes"].get<std::size_t>());
  return text;
}

std::map<std::string, std::string> answers(const Table& table) {
  std::map<std::string, std::string> all;
  for (const auto& row : table.at("results")) all[name_of(row)] = answer_of(row);
  return all;
}

void add_missing(std::vector<std::string>& architectures, const std::string& architecture) {
  if (std::ranges::find(architectures, architecture) == architectures.end()) architectures.push_back(architecture);
}

}  // namespace

Table read_table(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail_argument("expected an acceptance table at ", path, ", found no file that can be read");
  try {
    Table table = Table::parse(file);
    answers(table);
    return table;
  } catch (const nlohmann::json::exception& error) {
    fail_argument("expected an acceptance table at ", path, ", found something else: ", error.what());
  }
}

void write_table(const Table& table, const std::string& path) {
  std::ofstream file(path);
  Table head = table;
  head.erase("results");
  std::string text = head.dump();
  text.pop_back();
  text += ",\n\"results\": [";
  const char* separator = "\n";
  for (const auto& row : table.at("results")) {
    text += separator + row.dump();
    separator = ",\n";
  }
  file << text << "\n]}\n";
  if (!file.flush()) fail_environment("the acceptance table could not be written to ", path);
}

std::vector<std::string> differences(const Table& committed, const Table& found, bool subset) {
  std::vector<std::string> lines;
  auto before = answers(committed);
  for (const auto& [cell, answer] : answers(found)) {
    const auto known = before.extract(cell);
    if (known.empty()) {
      lines.push_back(concat(cell, ": new: ", answer));
    } else if (known.mapped() != answer) {
      lines.push_back(concat(cell, ":\n  was ", known.mapped(), "\n  is  ", answer));
    }
  }
  if (subset) return lines;
  for (const auto& [cell, answer] : before) lines.push_back(concat(cell, ": gone: ", answer));
  return lines;
}

std::string to_markdown(const Table& table) {
  std::vector<std::string> architectures, rows, reasons;
  std::map<std::string, std::map<std::string, std::string>> marks;
  for (const auto& row : table.at("results")) {
    const auto architecture = row.at("architecture").get<std::string>();
    const std::string title =
        concat(row.at("modifier").get<std::string>(), " | ", row.at("direction").get<std::string>());
    add_missing(architectures, architecture);
    add_missing(rows, title);
    std::string& mark = marks[title][architecture];
    mark = row.at("verdict").get<std::string>();
    if (mark == "built") continue;
    const std::string reason = row.value("reason", "");
    add_missing(reasons, reason);
    mark += concat(" (", std::ranges::find(reasons, reason) - reasons.begin() + 1, ")");
  }
  std::string text = "| modifier | direction |", rule = "\n|---|---|";
  for (const std::string& architecture : architectures) {
    text += concat(" ", architecture, " |");
    rule += "---|";
  }
  text += rule + "\n";
  for (const std::string& row : rows) {
    text += concat("| ", row, " |");
    for (const std::string& architecture : architectures) text += concat(" ", marks[row][architecture], " |");
    text += "\n";
  }
  for (std::size_t i = 0; i < reasons.size(); ++i) text += concat(i == 0 ? "\n" : "", i + 1, ". ", reasons[i], "\n");
  return text;
}

}  // namespace scoremod::acceptance
