#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>

namespace scoremod::input {

/// Writes a file made of these parts, by way of a temporary one beside it, so that no half-written file is ever there.
/// Throws Error(kEnvironment).
void write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> parts);

}  // namespace scoremod::input
