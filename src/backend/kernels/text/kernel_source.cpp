#include "backend/kernels/text/kernel_source.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "backend/cuda/text/kernel_text.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

using cuda::KernelFile;

/// Larger programs become functions that are called: a copy for every element of a thread's tile would take NVRTC
/// minutes, and leave the instruction cache.
constexpr std::size_t kMaxInlinedNodes = 120;

/// Adds a file after what it includes, unless it is there.
void add_closure(std::vector<const KernelFile*>& files, std::string_view path) {
  const KernelFile& file = cuda::kernel_file(path);
  if (std::ranges::find(files, &file) != files.end()) return;
  for (const std::string_view included : file.includes) add_closure(files, included);
  files.push_back(&file);
}

std::vector<const KernelFile*> closure(const Module& module) {
  std::vector<const KernelFile*> files;
  for (const ModuleFile& file : module) add_closure(files, file.path);
  return files;
}

using Names = std::set<std::string_view>;

Names kernels_of(const Module& module) {
  Names kernels;
  for (const ModuleFile& file : module) kernels.insert(file.kernels.begin(), file.kernels.end());
  return kernels;
}

/// The kernel that a hole of this name holds, if it holds one.
std::optional<std::string_view> kernel_in(std::string_view hole) {
  constexpr std::string_view kPrefix = "kernel ";
  return hole.starts_with(kPrefix) ? std::optional(hole.substr(kPrefix.size())) : std::nullopt;
}

/// The holes to fill in a text with these kernels.
void add_holes(std::vector<std::string_view>& names, std::string_view text, const Names& kernels) {
  for (const std::string_view hole : cuda::holes_of(text)) {
    const auto kernel = kernel_in(hole);
    if (!kernel)
      names.push_back(hole);
    else if (kernels.contains(*kernel))
      add_holes(names, cuda::part(text, hole), kernels);
  }
}

/// A text with these kernels, which are taken out of `missing`.
std::string filled(const KernelSource& source, std::string_view text, const Names& kernels, Names& missing) {
  std::string kept;
  return cuda::fill(text, [&](std::string_view hole) -> std::string_view {
    const auto kernel = kernel_in(hole);
    if (!kernel) return source.holes.at(hole).text;
    if (!kernels.contains(*kernel)) return {};
    missing.erase(*kernel);
    return kept = filled(source, cuda::part(text, hole), kernels, missing);
  });
}

Module all_of(const KernelSource& source) {
  Module all;
  for (const Module& module : source.modules) all.insert(all.end(), module.begin(), module.end());
  return all;
}

template <class WriteHole>
Bytes canonical_bytes(const KernelSource& source, const WriteHole& write_hole) {
  CanonicalWriter out;
  for (const Module& module : source.modules) {
    out.list(module.size());
    for (const ModuleFile& file : module) {
      out.text(cuda::kernel_file(file.path).digest).list(file.kernels.size());
      for (const std::string_view kernel : file.kernels) out.text(kernel);
    }
  }
  const Module all = all_of(source);
  const Names kernels = kernels_of(all);
  Names written;
  // The digests and the kernels say which holes follow, and their names with them.
  for (const KernelFile* file : closure(all)) {
    out.text(file->digest);
    std::vector<std::string_view> names;
    add_holes(names, file->text, kernels);
    for (const std::string_view name : names) {
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

std::string render(const KernelSource& source, const Module& module, const Replacements& replacements) {
  const Names kernels = kernels_of(module);
  Names missing = kernels;
  std::string text;
  for (const KernelFile* file : closure(module)) {
    const auto replaced = replacements.find(file->path);
    text +=
        replaced != replacements.end() ? std::string(replaced->second) : filled(source, file->text, kernels, missing);
  }
  if (!missing.empty()) fail_bug("no file of the module has the kernel '", *missing.begin(), "'");
  return text;
}

std::vector<std::string> render_modules(const KernelSource& source) {
  std::vector<std::string> texts;
  for (const Module& module : source.modules) texts.push_back(render(source, module));
  return texts;
}

std::string render_all(const KernelSource& source, const Replacements& replacements) {
  return render(source, all_of(source), replacements);
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

const char* linkage(const Program& program) {
  return program.nodes().size() > kMaxInlinedNodes ? "SCOREMOD_OUT_OF_LINE" : "SCOREMOD_FUNCTION";
}

std::string with_operands(const cuda::ProgramSource& source, const std::string& statements) {
  std::string text;
  for (const std::uint32_t operand : source.operands())
    text += concat("const void* ", cuda::ProgramSource::operand_name(operand), " = p.operands[", operand, "].data;\n");
  return text + statements;
}

std::string keep_variable(const Program& program) {
  return program.keep() == kNoNode ? "true" : cuda::ProgramSource::variable(program.keep());
}

std::vector<NodeId> forward_nodes(const Program& program) {
  std::vector<NodeId> nodes{program.value()};
  if (program.keep() != kNoNode) nodes.push_back(program.keep());
  return nodes;
}

}  // namespace scoremod::backend::kernels
