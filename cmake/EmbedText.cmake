# embed_text(TARGET FILE SYMBOL): makes the text of FILE a constant of the library,
#   namespace scoremod::embedded { extern const std::string_view SYMBOL; }
# so that an installed library needs no data files.
function(embed_text target file symbol)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  embed_string(${target} "${text}" ${symbol})
endfunction()

# embed_cuda_files(TARGET ROOT FILES): makes the .cuh files of FILES, which are CUDA C++ for NVRTC, the table scoremod::embedded::kCudaFiles
# (src/backend/cuda/text/kernel_text.hpp). A file's path is relative to ROOT, as #include lines write it. Its includes of other .cuh files are
# kept apart from its text, and what stands above `#pragma once` is for readers alone.
function(embed_cuda_files target root files)
  list(SORT files)
  set(declarations "")
  set(entries "")
  foreach(file IN LISTS files)
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY "${root}" OUTPUT_VARIABLE path)
    string(MAKE_C_IDENTIFIER "cuda_file_${path}" symbol)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" text)
    string(FIND "${text}" "\n#pragma once\n" start)
    if(start EQUAL -1)
      message(FATAL_ERROR "${file} has no line '#pragma once'")
    endif()
    math(EXPR start "${start} + 14")
    string(SUBSTRING "${text}" ${start} -1 text)
    string(REGEX MATCHALL "#include (\"[^\n]*\")\n" includes "${text}")
    string(REGEX REPLACE "#include (\"[^;\n]*\")\n;?" "\\1, " includes "${includes}")
    string(REGEX REPLACE "#include \"[^\n]*\n" "" text "${text}")
    string(SHA256 digest "${text}")
    string(SUBSTRING "${digest}" 0 24 digest)
    embed_string(${target} "${text}" ${symbol})
    string(APPEND declarations "extern const std::string_view ${symbol};\n")
    string(APPEND entries "    {\"${path}\", ${symbol}, \"${digest}\", {${includes}}},\n")
  endforeach()
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/embedded/cuda_files.cpp")
  file(CONFIGURE OUTPUT "${generated}" @ONLY CONTENT "#include \"backend/cuda/text/kernel_text.hpp\"
namespace scoremod::embedded {
${declarations}std::span<const backend::cuda::KernelFile> cuda_files() {
  static const backend::cuda::KernelFile files[] = {
${entries}  };
  return files;
}
}
")
  target_sources(${target} PRIVATE "${generated}")
  set_source_files_properties("${generated}" PROPERTIES COMPILE_OPTIONS "-I${root}")
endfunction()

function(embed_string target text symbol)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/embedded/${symbol}.cpp")
  # Pieces below the length that compilers must take for one literal.
  string(REGEX REPLACE "([^\n]*\n)" "R\"embedded(\\1)embedded\"\n" literals "${text}")
  file(CONFIGURE OUTPUT "${generated}" @ONLY CONTENT "#include <string_view>
namespace scoremod::embedded {
extern const std::string_view ${symbol};
const std::string_view ${symbol} =
${literals};
}
")
  target_sources(${target} PRIVATE "${generated}")
endfunction()
