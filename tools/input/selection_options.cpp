#include "selection_options.hpp"

#include <cstdlib>
#include <optional>
#include <string>

namespace scoremod::input {
namespace {

std::string set_memory(const std::string& text, std::optional<MemoryKind>& memory) {
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kCuda}) {
    if (text == to_string(kind)) memory = kind;
  }
  return memory ? "" : "expected host or cuda, found '" + text + "'";
}

std::string set_new_sizes(const std::string& text, std::optional<NewSizes>& new_sizes) {
  for (const NewSizes wish : {NewSizes::kWait, NewSizes::kServe}) {
    if (text != to_string(wish)) continue;
    new_sizes = wish;
    return "";
  }
  return "expected wait or serve, found '" + text + "'";
}

}  // namespace

void add_selection(CLI::App& command, CompileOptions& options, const std::string& purpose) {
  // A command measures or checks the plan that calls will run in the end.
  if (std::getenv("SCOREMOD_NEW_SIZES") == nullptr) options.new_sizes = NewSizes::kWait;
  CLI::Option* one = command.add_option("--backend", options.backend,
                                        "Backend" + purpose + "; the first of --backends that fits if left out");
  command
      .add_option("--backends", options.backends,
                  "Backends to choose from, with commas between: cudnn,kernels in this order, or --backends=-cudnn for "
                  "all but that one; SCOREMOD_BACKENDS if left out")
      ->allow_extra_args(false)
      ->delimiter(',')
      ->excludes(one);
  command
      .add_option_function<std::string>(
          "--memory",
          [&options](const std::string& text) {
            if (const std::string why = set_memory(text, options.memory); !why.empty()) {
              throw CLI::ValidationError("--memory", why);
            }
          },
          "Where tensors lie: host, or cuda for the fastest of the GPU's backends; that of the backends if left out")
      ->option_text("host|cuda");
  command
      .add_option_function<std::string>(
          "--new-sizes",
          [&options](const std::string& text) {
            if (const std::string why = set_new_sizes(text, options.new_sizes); !why.empty()) {
              throw CLI::ValidationError("--new-sizes", why);
            }
          },
          "If the fastest plan has to be built first: wait for it, or serve with a plan that is ready meanwhile; if "
          "left out, as SCOREMOD_NEW_SIZES says, or wait")
      ->option_text("wait|serve");
}

}  // namespace scoremod::input
