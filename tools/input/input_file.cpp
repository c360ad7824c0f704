#include "input_file.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>

namespace scoremod::input {
namespace {

/// The first byte of a pipe that was opened without waiting, if it is available; nothing if a writer has yet to write
/// it.
struct PipeStart {
  bool has_writer = true;
  std::optional<unsigned char> byte;
};

PipeStart start_of_pipe(int descriptor) {
  unsigned char byte = 0;
  const ssize_t count = ::read(descriptor, &byte, 1);
  if (count == 1) return {true, byte};
  return {count != 0, std::nullopt};
}

}  // namespace

InputFile open_input_file(const std::string& path) {
  InputFile input{{nullptr, std::fclose}, ""};
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    input.failure = std::strerror(errno);
    return input;
  }
  struct stat status {};
  PipeStart start;
  if (::fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode)) start = start_of_pipe(descriptor);
  if (!start.has_writer) {
    ::close(descriptor);
    input.failure = "it is a pipe that nobody writes to";
    return input;
  }
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  input.file.reset(::fdopen(descriptor, "rb"));
  if (input.file == nullptr) {
    input.failure = std::strerror(errno);
    ::close(descriptor);
  } else if (start.byte) {
    std::ungetc(*start.byte, input.file.get());
  }
  return input;
}

}  // namespace scoremod::input
