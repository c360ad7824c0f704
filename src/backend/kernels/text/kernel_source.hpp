#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/text/program_source.hpp"
#include "base/bytes.hpp"
#include "base/concat.hpp"

// Kernel sources from .cuh files. A file's #include lines say what it needs, and its holes what a problem puts into it.
// A file may hold several kernels, each in a hole `kernel NAME`: a module has those of them that it names.

namespace scoremod::backend::kernels {

/// The values of the holes of kernel files: one value for each name, in whichever files holes of this name are.
class Holes {
 public:
  template <class Value>
  void set(std::string_view name, const Value& value) {
    add(name, {concat(value), std::nullopt, std::nullopt});
  }
  /// `structure` takes the text's place in structure_of(): equal for two texts if a trial of one vouches for the other.
  void set_program(std::string_view name, std::string text, Bytes structure) {
    add(name, {std::move(text), std::nullopt, std::move(structure)});
  }
  /// `follows_from` takes the place of a long text that it decides.
  void set_long(std::string_view name, std::string text, Bytes follows_from) {
    add(name, {std::move(text), std::move(follows_from), std::nullopt});
  }

  struct Value {
    std::string text;
    std::optional<Bytes> follows_from, structure;
  };
  /// A hole that nobody has filled is a bug.
  const Value& at(std::string_view name) const;

 private:
  void add(std::string_view name, Value value);

  std::map<std::string_view, Value> values_;  ///< names are literals
};

/// A file of a module, and those of the module's kernels that stand in holes `kernel NAME` of the file. A kernel
/// outside such a hole is there wherever its file is.
struct ModuleFile {
  std::string_view path;
  std::vector<std::string_view> kernels = {};
};
using Module = std::vector<ModuleFile>;

/// The kernels of one plan. NVRTC takes a second or two for each large kernel, so modules are compiled side by side.
struct KernelSource {
  Holes holes;
  std::vector<Module> modules;  ///< what their files include is not named
};

/// Texts by the paths of the files that they replace, for a host to run the kernels on.
using Replacements = std::map<std::string_view, std::string_view>;

/// The module's files and all that they include, each once and after what it includes, with holes filled. A kernel that
/// none of them has is a bug.
std::string render(const KernelSource& source, const Module& module, const Replacements& replacements = {});
std::vector<std::string> render_modules(const KernelSource& source);
/// All modules as one text.
std::string render_all(const KernelSource& source, const Replacements& replacements = {});

/// The canonical bytes of what render_modules() is made from: equal for two sources exactly if all modules are.
Bytes key_of(const KernelSource& source);
/// key_of() with the structure of holes in place of their text: equal for two sources if a trial of one vouches for the
/// other.
Bytes structure_of(const KernelSource& source);

// Functions that the texts of the attention kernels and of the operand-gradient kernels share.

/// How a program's functions are declared: large ones are called, small ones a part of their callers.
const char* linkage(const Program& program);
/// Definitions of the operands that the statements read, before these.
std::string with_operands(const cuda::ProgramSource& source, const std::string& statements);
/// The variable that says whether a key is kept.
std::string keep_variable(const Program& program);
/// The value, and the mask where there is one.
std::vector<NodeId> forward_nodes(const Program& program);

}  // namespace scoremod::backend::kernels
