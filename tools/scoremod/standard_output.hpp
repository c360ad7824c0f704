#pragma once

#include <string>

namespace scoremod::cli {

/// To be called before any file is opened. Writing to a closed pipe, or beyond the limit of a file's size (`ulimit
/// -f`), then is an error and does not end the process. The numbers of closed standard streams are not given to other
/// files.
void prepare_standard_streams();

/// Writes text to the standard output and flushes it. Throws Error(kEnvironment) when it cannot be written; with an
/// empty message when the reader has gone, because then nobody wants to know.
void write_output(const std::string& text);

}  // namespace scoremod::cli
