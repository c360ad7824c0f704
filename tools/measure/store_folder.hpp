#pragma once

#include <string>

namespace scoremod::measure {

/// An empty folder for a plan store, deleted at the end. Throws Error(kEnvironment) when it cannot be made.
class StoreFolder {
 public:
  StoreFolder();
  ~StoreFolder();
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace scoremod::measure
