#include "plans/record_file.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "base/version.hpp"

namespace scoremod::plans {
namespace {

constexpr std::string_view kMagic = "SCOREMOD";
constexpr std::uint64_t kFormat = 1;
constexpr std::size_t kPreludeBytes = 8 + 4 + 8 + 8;
constexpr std::size_t kChecksumBytes = 8;

void append(Bytes& bytes, std::span<const std::byte> more) {
  const std::size_t end = bytes.size();
  bytes.resize(end + more.size());
  std::ranges::copy(more, bytes.begin() + static_cast<std::ptrdiff_t>(end));
}

void append_number(Bytes& bytes, std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
}

std::uint64_t number_at(std::span<const std::byte> bytes, std::size_t place, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < width; ++i) value |= static_cast<std::uint64_t>(bytes[place + i]) << (8 * i);
  return value;
}

std::optional<RecordKind> parse_kind(std::string_view name) {
  for (const RecordKind kind : kRecordKinds) {
    if (name == to_string(kind)) return kind;
  }
  return std::nullopt;
}

Bytes header_of(const Record& record) {
  CanonicalWriter writer;
  writer.text(to_string(record.kind)).text(version());
  writer.text(record.engine).text(record.architecture).text(record.label).bytes(record.key);
  return writer.written();
}

/// The numbers at a file's beginning, once they are known to fit the file.
struct Prelude {
  std::string damage;
  std::size_t header_end = 0;
};

Prelude read_prelude(std::span<const std::byte> beginning, std::uint64_t file_bytes) {
  const auto magic = std::as_bytes(std::span(kMagic));
  const auto begin = beginning.first(std::min(beginning.size(), magic.size()));
  if (!std::equal(begin.begin(), begin.end(), magic.begin())) return {"is no file of scoremod's plan store", 0};
  if (beginning.size() < kPreludeBytes) return {concat("is cut off: it has ", file_bytes, " bytes"), 0};
  const std::uint64_t format = number_at(beginning, 8, 4);
  if (format != kFormat) return {concat("has format ", format, ", this version of scoremod reads ", kFormat), 0};
  const std::uint64_t header = number_at(beginning, 12, 8);
  const std::uint64_t payload = number_at(beginning, 20, 8);
  if (header > kMaxHeaderBytes || payload > kMaxFileBytes) return {"has impossible lengths in its header", 0};
  const std::uint64_t expected = kPreludeBytes + header + payload + 2 * kChecksumBytes;
  if (expected != file_bytes) return {concat("has ", file_bytes, " bytes, its header says ", expected), 0};
  return {"", kPreludeBytes + header};
}

/// Whether the checksum at `place` is that of everything before it.
bool checksum_holds(std::span<const std::byte> file, std::size_t place) {
  return number_at(file, place, kChecksumBytes) == fnv1a(file.first(place));
}

RecordFile damaged(std::string why) {
  RecordFile file;
  file.damage = std::move(why);
  return file;
}

}  // namespace

const char* to_string(RecordKind kind) {
  switch (kind) {
    case RecordKind::kPlan: return "plan";
    case RecordKind::kVerification: return "verification";
    case RecordKind::kKernels: return "kernels";
    case RecordKind::kChoice: return "choice";
    case RecordKind::kRefusal: return "refusal";
  }
  return "unknown";
}

Bytes encode(const Record& record) {
  const Bytes header = header_of(record);
  if (header.size() > kMaxHeaderBytes - kPreludeBytes - kChecksumBytes) {
    fail_bug("a record's header has ", header.size(), " bytes");
  }
  if (record.payload.size() > kMaxFileBytes - kMaxHeaderBytes - kChecksumBytes) {
    fail_bug("a record's payload has ", record.payload.size(), " bytes");
  }
  Bytes file;
  file.reserve(kPreludeBytes + header.size() + record.payload.size() + 2 * kChecksumBytes);
  append(file, std::as_bytes(std::span(kMagic)));
  append_number(file, kFormat, 4);
  append_number(file, header.size(), 8);
  append_number(file, record.payload.size(), 8);
  append(file, header);
  append_number(file, fnv1a(file), kChecksumBytes);
  append(file, record.payload);
  append_number(file, fnv1a(file), kChecksumBytes);
  return file;
}

RecordFile decode_header(std::span<const std::byte> beginning, std::uint64_t file_bytes) {
  Prelude prelude = read_prelude(beginning, file_bytes);
  if (!prelude.damage.empty()) return damaged(std::move(prelude.damage));
  if (beginning.size() < prelude.header_end + kChecksumBytes) return damaged("has impossible lengths in its header");
  if (!checksum_holds(beginning, prelude.header_end)) return damaged("has a header that does not match its checksum");
  CanonicalReader reader(beginning.first(prelude.header_end).subspan(kPreludeBytes));
  const auto kind = parse_kind(reader.text());
  RecordFile file;
  file.library = reader.text();
  file.record.kind = kind.value_or(RecordKind::kPlan);
  file.record.engine = reader.text();
  file.record.architecture = reader.text();
  file.record.label = reader.text();
  file.record.key = reader.bytes();
  if (!kind || !reader.at_end()) return damaged("has a header that this version of scoremod cannot read");
  return file;
}

RecordFile decode(std::span<const std::byte> bytes) {
  RecordFile file = decode_header(bytes, bytes.size());
  if (!file.damage.empty()) return file;
  const std::size_t end = bytes.size() - kChecksumBytes;
  if (!checksum_holds(bytes, end)) return damaged("has contents that do not match their checksum");
  const std::size_t payload = number_at(bytes, 20, 8);
  const auto contents = bytes.subspan(end - payload, payload);
  file.record.payload.assign(contents.begin(), contents.end());
  return file;
}

}  // namespace scoremod::plans
