#include "backend/kernels/text/kernel_source.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "backend/cuda/kernel_text.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

using cuda::KernelFile;

/// Adds a file after what it includes, unless it is there.
void add_closure(std::vector<const KernelFile*>& files, std::string_view path) {
  const KernelFile& file = cuda::kernel_file(path);
  if (std::ranges::find(files, &file) != files.end()) return;
  for (const std::string_view included : file.includes) add_closure(files, included);
  files.push_back(&file);
}

std::vector<const KernelFile*> closure(std::span<const std::string_view> paths) {
  std::vector<const KernelFile*> files;
  for (const std::string_view path : paths) add_closure(files, path);
  return files;
}

std::vector<std::string_view> all_files(const KernelSource& source) {
  std::vector<std::string_view> files;
  for (const std::vector<std::string_view>& module : source.modules)
    files.insert(files.end(), module.begin(), module.end());
  return files;
}

template <class WriteHole>
Bytes canonical_bytes(const KernelSource& source, const WriteHole& write_hole) {
  CanonicalWriter out;
  std::set<std::string_view> written;
  for (const std::vector<std::string_view>& module : source.modules) {
    out.list(module.size());
    for (const std::string_view path : module) out.text(cuda::kernel_file(path).digest);
  }
  // The digests say which holes follow, and their names with them.
  for (const KernelFile* file : closure(all_files(source))) {
    out.text(file->digest);
    for (const std::string_view name : cuda::holes_of(file->text)) {
      if (written.insert(name).second) write_hole(out, source.holes.at(name));
    }
  }
  return out.written();
}

}  // namespace

void Holes::add(std::string_view name, Value value) {
  if (!values_.try_emplace(name, std::move(value)).second) fail_bug("hole '", name, "' of kernel text is filled twice");
}

const Holes::Value& Holes::at(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) fail_bug("nothing to fill hole '", name, "' of kernel text with");
  return found->second;
}

std::string render(const KernelSource& source, std::span<const std::string_view> files,
                   const Replacements& replacements) {
  std::string text;
  for (const KernelFile* file : closure(files)) {
    if (const auto replaced = replacements.find(file->path); replaced != replacements.end())
      text += replaced->second;
    else
      text +=
          cuda::fill(file->text, [&](std::string_view name) -> std::string_view { return source.holes.at(name).text; });
  }
  return text;
}

std::vector<std::string> render_modules(const KernelSource& source) {
  std::vector<std::string> texts;
  for (const std::vector<std::string_view>& module : source.modules) texts.push_back(render(source, module));
  return texts;
}

std::string render_all(const KernelSource& source, const Replacements& replacements) {
  return render(source, all_files(source), replacements);
}

Bytes key_of(const KernelSource& source) {
  return canonical_bytes(source, [](CanonicalWriter& out, const Holes::Value& hole) {
    if (hole.follows_from)
      out.bytes(*hole.follows_from);
    else
      out.text(hole.text);
  });
}

Bytes structure_of(const KernelSource& source) {
  return canonical_bytes(source, [](CanonicalWriter& out, const Holes::Value& hole) {
    if (hole.structure)
      out.bytes(*hole.structure);
    else if (hole.follows_from)
      out.bytes(*hole.follows_from);
    else
      out.text(hole.text);
  });
}

}  // namespace scoremod::backend::kernels
