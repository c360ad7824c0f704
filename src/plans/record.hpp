#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.hpp"

namespace scoremod::plans {

enum class RecordKind : std::uint8_t {
  kPlan,          ///< a serialized plan
  kVerification,  ///< the verdict of a trial run on a device
  kKernels,       ///< kernels that were compiled for a program
  kChoice,        ///< which of some candidates was measured to be the fastest
  kRefusal,       ///< why a backend does not build a candidate
};

inline constexpr std::array kRecordKinds{RecordKind::kPlan, RecordKind::kVerification, RecordKind::kKernels,
                                         RecordKind::kChoice, RecordKind::kRefusal};
static_assert(kRecordKinds.size() == static_cast<std::size_t>(RecordKind::kRefusal) + 1,
              "a kind that is not listed can be written and not read");

/// "plan", "verification", "kernels", "choice" or "refusal"; also the beginning of its files' names.
const char* to_string(RecordKind kind);

/// Something to be kept in a file, to be found by its kind and key.
struct Record {
  RecordKind kind = RecordKind::kPlan;
  /// For people and for tools that look at files; whatever decides whether the record may be used must be in the key.
  std::string engine;        ///< such as "cudnn 9.19.0"
  std::string architecture;  ///< such as "sm_90 NVIDIA H200"
  std::string label;         ///< such as "forward bf16 b4 h16 s4096x4096 d128"
  Bytes key;                 ///< canonical bytes; compared in full
  Bytes payload;
};

}  // namespace scoremod::plans
