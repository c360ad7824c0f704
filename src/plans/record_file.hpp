#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "plans/record.hpp"

namespace scoremod::plans {

// The format of one file of the plan store. Numbers have their least significant byte first.
//
// - 8 bytes: "SCOREMOD"
// - 4: format, 1
// - 8: n, the header's length
// - 8: m, the payload's length
// - n: header, canonical bytes: kind, scoremod's version, engine, architecture, label, key
// - 8: FNV-1a of everything before
// - m: payload
// - 8: FNV-1a of everything before

/// No header is longer; so much is read to list a file.
inline constexpr std::size_t kMaxHeaderBytes = std::size_t{1} << 18;
/// No file is longer; a larger one in the store's folder is not the store's.
inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

/// The contents of a file, or why it is of no use.
struct RecordFile {
  std::string damage;   ///< empty when all is well; otherwise nothing else is set
  std::string library;  ///< the version of scoremod that wrote it
  Record record;
};

/// Throws Error(kBug) for a record beyond the limits.
Bytes encode(const Record& record);
/// Reads a whole file.
RecordFile decode(std::span<const std::byte> file);
/// Reads a file's beginning, kMaxHeaderBytes or all of it: everything but the payload.
RecordFile decode_header(std::span<const std::byte> beginning, std::uint64_t file_bytes);

}  // namespace scoremod::plans
