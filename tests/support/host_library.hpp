#pragma once

#include <string>

namespace scoremod::test {

/// Makes a shared library of C++ text with the system's compiler, as for a debugger unless `options` ask for more, and
/// of `objects`, whose paths stand in one text. The loader knows it by `soname`, where that is not empty. Leaves the
/// text and the object beside it. Throws Error when the text does not compile.
void compile_library(const std::string& text, const std::string& path, const std::string& soname = "",
                     const std::string& options = "", const std::string& objects = "");

/// A shared library made of C++ text by the system's compiler, loaded while this lives.
class HostLibrary {
 public:
  /// Includes `header`, where there is one, in front of the text. Throws Error when the text does not compile or the
  /// library does not load.
  explicit HostLibrary(const std::string& text, const std::string& options = "", const std::string& header = "",
                       const std::string& objects = "");
  ~HostLibrary();
  HostLibrary(const HostLibrary&) = delete;
  HostLibrary& operator=(const HostLibrary&) = delete;

  /// An `extern "C"` function of the text; null when there is none of that name.
  template <class Function>
  Function function(const std::string& name) const {
    return reinterpret_cast<Function>(symbol(name));
  }

 private:
  void* symbol(const std::string& name) const;

  std::string folder_;
  void* handle_ = nullptr;
};

}  // namespace scoremod::test
