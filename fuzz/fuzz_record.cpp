// Files of the plan store, which other versions, other programs and full disks may have written.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.hpp"
#include "expect.hpp"
#include "plans/record_file.hpp"

namespace {

using scoremod::Bytes;
using scoremod::plans::RecordFile;

constexpr std::size_t kChecksum = 8;

void put_checksum(Bytes& file, std::size_t place) {
  const std::uint64_t sum = scoremod::fnv1a(std::span(file).first(place));
  for (std::size_t i = 0; i < kChecksum; ++i) file[place + i] = static_cast<std::byte>(sum >> (8 * i) & 0xff);
}

std::size_t number_at(const Bytes& file, std::size_t place) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < 8; ++i) number |= static_cast<std::size_t>(file[place + i]) << (8 * i);
  return number;
}

/// With right checksums, where its lengths say they are: damage would be seen by them alone otherwise.
Bytes with_right_checksums(Bytes file) {
  constexpr std::size_t kLengthPlace = 12, kHeaderPlace = 28;
  if (file.size() < kHeaderPlace + 2 * kChecksum) return file;
  const std::size_t header = number_at(file, kLengthPlace);
  if (header > file.size() - kHeaderPlace - 2 * kChecksum) return file;
  put_checksum(file, kHeaderPlace + header);
  put_checksum(file, file.size() - kChecksum);
  return file;
}

void check(const Bytes& file) {
  const RecordFile read = scoremod::plans::decode(file);
  (void)scoremod::plans::decode_header(file, file.size());
  if (!read.damage.empty()) return;
  const RecordFile again = scoremod::plans::decode(scoremod::plans::encode(read.record));
  scoremod::fuzz::expect(again.damage.empty() && again.record.key == read.record.key &&
                             again.record.payload == read.record.payload && again.record.kind == read.record.kind,
                         "what was read of a file is written so that it reads back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const Bytes file(bytes.begin(), bytes.end());
  check(file);
  check(with_right_checksums(file));
  return 0;
}
