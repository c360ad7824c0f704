# usage: cmake -DBUILD_FOLDER=... -DWORK_FOLDER=... -DCXX_COMPILER=... -DC_COMPILER=... -DVERSION=... [-DSANITIZE=...] -P run.cmake
# Installs a build into a fresh prefix, and builds and runs a user's project against it, with CMake and with pkg-config.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(sanitizer "")
if(SANITIZE)
  set(sanitizer "-fsanitize=${SANITIZE}")
endif()

file(REMOVE_RECURSE "${WORK_FOLDER}")
run("${CMAKE_COMMAND}" --install "${BUILD_FOLDER}" --prefix "${WORK_FOLDER}/prefix")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK_FOLDER}/build" -G Ninja
    "-DCMAKE_PREFIX_PATH=${WORK_FOLDER}/prefix" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_C_COMPILER=${C_COMPILER}"
    "-DCMAKE_CXX_FLAGS=${sanitizer}")
run("${CMAKE_COMMAND}" --build "${WORK_FOLDER}/build")
run("${WORK_FOLDER}/build/user")

# From another place than it was installed to: scoremod.pc must find its folders itself.
file(RENAME "${WORK_FOLDER}/prefix" "${WORK_FOLDER}/moved")
find_program(PKG_CONFIG pkg-config REQUIRED)
file(GLOB_RECURSE pc_file "${WORK_FOLDER}/moved/*/scoremod.pc")
cmake_path(GET pc_file PARENT_PATH pc_folder)
cmake_path(GET pc_folder PARENT_PATH library_folder)
set(ENV{PKG_CONFIG_PATH} "${pc_folder}")
execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs scoremod OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run("${CXX_COMPILER}" -std=c++20 ${sanitizer} "${CMAKE_CURRENT_LIST_DIR}/main.cpp" -o "${WORK_FOLDER}/by_pkg_config" ${flags}
    "-Wl,-rpath,${library_folder}")
run("${WORK_FOLDER}/by_pkg_config")
if(NOT EXISTS "${WORK_FOLDER}/moved/share/licenses/scoremod/LICENSE")
  message(FATAL_ERROR "the installed tree has no LICENSE")
endif()
run("${PKG_CONFIG}" --exact-version=${VERSION} scoremod)
file(RENAME "${WORK_FOLDER}/moved" "${WORK_FOLDER}/prefix")

if(EXISTS "${WORK_FOLDER}/prefix/bin/scoremod")
  run("${WORK_FOLDER}/prefix/bin/scoremod" --help)
endif()
