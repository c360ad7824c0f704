#include "fake_cuda/cubin.hpp"

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <map>
#include <stdexcept>
#include <string_view>

namespace scoremod::test::fake_cuda {
namespace {

// Attributes of .nv.info sections, as cuobjdump --dump-elf names them.
constexpr unsigned kMaxThreads = 0x05;     // EIATTR_MAX_THREADS: x, y, z
constexpr unsigned kParameterInfo = 0x17;  // EIATTR_KPARAM_INFO: index, ordinal and offset, size from bit 18 on
constexpr unsigned kRegisterCount = 0x2f;  // EIATTR_REGCOUNT: a symbol's number, its registers
constexpr unsigned kWithPayload = 0x04;    // EIFMT_SVAL: the 16 bits behind are the payload's size
constexpr std::string_view kInfo = ".nv.info";
constexpr std::string_view kInfoOf = ".nv.info.";
constexpr std::string_view kSharedOf = ".nv.shared.";

template <class Value>
Value at(const char* bytes) {
  Value value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

class Image {
 public:
  explicit Image(const void* image) : bytes_(static_cast<const char*>(image)) {
    if (std::memcmp(bytes_, ELFMAG, SELFMAG) != 0) throw std::runtime_error("an image that is no cubin");
    const auto header = at<Elf64_Ehdr>(bytes_);
    for (unsigned i = 0; i < header.e_shnum; ++i)
      sections_.push_back(at<Elf64_Shdr>(bytes_ + header.e_shoff + std::size_t{i} * header.e_shentsize));
    names_ = header.e_shstrndx;
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  const char* contents(const Elf64_Shdr& section) const { return bytes_ + section.sh_offset; }
  std::string_view name(const Elf64_Shdr& section) const { return contents(sections_[names_]) + section.sh_name; }
  std::string_view symbol(std::uint32_t number) const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_SYMTAB) continue;
      return contents(sections_[section.sh_link]) +
             at<Elf64_Sym>(contents(section) + number * sizeof(Elf64_Sym)).st_name;
    }
    return {};
  }

  /// take(attribute, payload) for each attribute of a .nv.info section that has a payload.
  template <class Take>
  void for_each_attribute(const Elf64_Shdr& section, const Take& take) const {
    constexpr std::size_t kHead = 4;
    const char* bytes = contents(section);
    for (std::size_t place = 0; place + kHead <= section.sh_size;) {
      const auto format = at<std::uint8_t>(bytes + place), attribute = at<std::uint8_t>(bytes + place + 1);
      const auto size = at<std::uint16_t>(bytes + place + 2);
      place += kHead;
      if (format != kWithPayload) continue;
      take(attribute, bytes + place);
      place += size;
    }
  }

 private:
  const char* bytes_;
  std::vector<Elf64_Shdr> sections_;
  std::size_t names_ = 0;
};

void read_attribute(Kernel& kernel, unsigned attribute, const char* payload) {
  if (attribute == kMaxThreads) {
    kernel.max_threads =
        std::int64_t{at<std::uint32_t>(payload)} * at<std::uint32_t>(payload + 4) * at<std::uint32_t>(payload + 8);
  }
  if (attribute != kParameterInfo) return;
  const std::size_t ordinal = at<std::uint16_t>(payload + 4);
  if (kernel.parameters.size() <= ordinal) kernel.parameters.resize(ordinal + 1);
  constexpr unsigned kSizeShift = 18;
  kernel.parameters[ordinal] = {at<std::uint16_t>(payload + 6), at<std::uint32_t>(payload + 8) >> kSizeShift};
}

}  // namespace

std::size_t Kernel::parameter_bytes() const {
  std::size_t end = 0;
  for (const Parameter& parameter : parameters) end = std::max(end, parameter.offset + parameter.bytes);
  return end;
}

std::vector<Kernel> kernels_of(const void* bytes) {
  const Image image(bytes);
  std::map<std::string_view, Kernel> kernels;
  for (const Elf64_Shdr& section : image.sections()) {
    const std::string_view name = image.name(section);
    if (!name.starts_with(kInfoOf)) continue;
    Kernel& kernel = kernels[name.substr(kInfoOf.size())];
    kernel.name = name.substr(kInfoOf.size());
    image.for_each_attribute(
        section, [&](unsigned attribute, const char* payload) { read_attribute(kernel, attribute, payload); });
  }
  for (const Elf64_Shdr& section : image.sections()) {
    const std::string_view name = image.name(section);
    const auto found = name.starts_with(kSharedOf) ? kernels.find(name.substr(kSharedOf.size())) : kernels.end();
    if (found != kernels.end()) found->second.static_shared_bytes = static_cast<std::int64_t>(section.sh_size);
    if (name != kInfo) continue;
    image.for_each_attribute(section, [&](unsigned attribute, const char* payload) {
      if (attribute != kRegisterCount) return;
      const auto of = kernels.find(image.symbol(at<std::uint32_t>(payload)));
      if (of != kernels.end()) of->second.registers = at<std::uint32_t>(payload + 4);
    });
  }
  std::vector<Kernel> list;
  for (auto& [name, kernel] : kernels) list.push_back(std::move(kernel));
  return list;
}

}  // namespace scoremod::test::fake_cuda
