# Language level, warnings, sanitizers and the compiler launcher, for every target of this project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(SCOREMOD_CCACHE ccache)
mark_as_advanced(SCOREMOD_CCACHE)
if(SCOREMOD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths below the checkout are hashed as relative ones, so that one checkout's objects serve another.
  set(launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${SCOREMOD_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${launcher}")
  set(CMAKE_C_COMPILER_LAUNCHER "${launcher}")
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # From -O2 on, GCC 12.2 drops the rounding when two neighbouring doubles go through float:
  #   r[0] = (float)x[0]; r[1] = (float)x[1];   becomes a plain copy of x.
  # tests/unit/base/float_rounding_test.cpp sees it. GCC 13.3 and 14.2 are right, and so is 12.2 without this pass.
  add_compile_options(-fno-tree-slp-vectorize)
endif()

# Linked by each of our own targets and by nothing that users see.
add_library(scoremod_warnings INTERFACE)
target_compile_options(
  scoremod_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wcast-align
                              $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi> $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of impossible overlaps inside std::string when optimizing (GCC bug 105651).
  target_compile_options(scoremod_warnings INTERFACE -Wno-restrict)
endif()
if(SCOREMOD_WERROR)
  target_compile_options(scoremod_warnings INTERFACE -Werror)
endif()

if(SCOREMOD_SANITIZE)
  add_compile_options(-fsanitize=${SCOREMOD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SCOREMOD_SANITIZE})
endif()
