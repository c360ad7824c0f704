#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include <CLI/App.hpp>

namespace scoremod::input {

/// Writes a file made of these parts, by way of a temporary one beside it. So no half-written file is ever there, and a
/// failure leaves the old file. A path that is no regular file (a device, a pipe, a link) is written to, and never
/// replaced. Throws Error(kEnvironment).
void write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> parts);
void write_file(const std::filesystem::path& path, std::string_view text);

/// Throws Error(kEnvironment) if write_file() would fail, as far as that can be known before the file's contents are
/// computed. Changes nothing.
void expect_writable(const std::filesystem::path& path);

/// The option --out. Its name may not be empty, as a variable that is not set is. `what` it names: "file" or "folder".
CLI::Option* add_out(CLI::App& app, std::string& out, const std::string& what, const std::string& help);

}  // namespace scoremod::input
