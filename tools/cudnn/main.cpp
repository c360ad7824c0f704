// Developers ask cuDNN by this program: docs/internals/cudnn.md and docs/reference/plans.md.

#include <array>
#include <iostream>
#include <string_view>

#include "tools/cudnn/commands.hpp"

namespace {

struct Command {
  std::string_view name;
  int (*run)(int argc, char** argv);
};

constexpr std::array kCommands{Command{"explore", scoremod::cudnn_program::explore},
                               Command{"accept", scoremod::cudnn_program::accept},
                               Command{"compare", scoremod::cudnn_program::compare_plans}};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(argc - 1, argv + 1);
  }
  std::cerr << "scoremod_cudnn: expected a command (explore, accept or compare), found "
            << (name.empty() ? "none" : name) << "; give --help behind it for its options\n";
  return 2;
}
