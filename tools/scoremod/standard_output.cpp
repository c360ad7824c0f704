#include "standard_output.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "fail.hpp"

namespace scoremod::cli {

void prepare_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int stream : {0, 1, 2}) {
    if (fcntl(stream, F_GETFD) != -1) continue;
    // The lowest free number is this one. Opened against its use, so that writing to it still fails.
    const int opened = open("/dev/null", stream == 0 ? O_WRONLY : O_RDONLY);
    if (opened != stream && opened >= 0) close(opened);
  }
}

void write_output(const std::string& text) {
  errno = 0;
  const std::size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw Error(ErrorCode::kEnvironment, "");
  input::fail(ErrorCode::kEnvironment, "the standard output cannot be written: ", std::strerror(errno));
}

}  // namespace scoremod::cli
