#include "explain/reason_json.hpp"

namespace scoremod::explaining {

void add_reasons(const std::vector<UnsupportedReason>& reasons, nlohmann::ordered_json& object) {
  // An empty list is one too.
  object["reasons"] = nlohmann::ordered_json::array();
  object["refusals"] = nlohmann::ordered_json::array();
  for (const UnsupportedReason& reason : reasons) {
    object["reasons"].push_back(to_string(reason));
    object["refusals"].push_back(
        {{"id", reason.id}, {"direction", reason.direction}, {"text", reason.text}, {"remedy", reason.remedy}});
  }
}

}  // namespace scoremod::explaining
