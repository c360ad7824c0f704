# embed_text(TARGET FILE SYMBOL): makes the text of FILE a constant of the library,
#   namespace scoremod::embedded { extern const std::string_view SYMBOL; }
# so that an installed library needs no data files.
function(embed_text target file symbol)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  embed_string(${target} "${text}" ${symbol})
endfunction()

# embed_cuda_texts(TARGET FILES): makes the text of each .cuh file of FILES, which is CUDA C++ for NVRTC, a constant as
# embed_text does: soft_max.cuh becomes kSoftMax. What stands above `#pragma once`, and includes of other .cuh files, are for readers,
# editors and the test that compiles each file alone (tests/unit/backend/cuda/kernel_text_test.cpp); both are left out. What a
# generator puts into the text stands in holes: src/backend/cuda/kernel_text.hpp.
function(embed_cuda_texts target files)
  set(symbols "")
  foreach(file IN LISTS files)
    cmake_path(GET file STEM name)
    string(REGEX MATCHALL "[^_]+" words "${name}")
    set(symbol k)
    foreach(word IN LISTS words)
      string(SUBSTRING "${word}" 0 1 first)
      string(SUBSTRING "${word}" 1 -1 rest)
      string(TOUPPER "${first}" first)
      string(APPEND symbol "${first}${rest}")
    endforeach()
    if(symbol IN_LIST symbols)
      message(FATAL_ERROR "two .cuh files are named ${name}.cuh, and one constant can't hold both: rename ${file}")
    endif()
    list(APPEND symbols ${symbol})

    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(READ "${file}" text)
    string(FIND "${text}" "\n#pragma once\n" start)
    if(start EQUAL -1)
      message(FATAL_ERROR "${file} has no line '#pragma once'")
    endif()
    math(EXPR start "${start} + 14")
    string(SUBSTRING "${text}" ${start} -1 text)
    string(REGEX REPLACE "#include \"[^\n]*\n" "" text "${text}")
    embed_string(${target} "${text}" ${symbol})
  endforeach()
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
