#pragma once

namespace scoremod::cudnn_program {

/// Each command's main(): argv[0] is its name. Returns the exit code.
int explore(int argc, char** argv);        ///< tries patterns on this machine's device
int accept(int argc, char** argv);         ///< builds plans for five architectures, without a device
int compare_plans(int argc, char** argv);  ///< holds stored plans to those built here

}  // namespace scoremod::cudnn_program
