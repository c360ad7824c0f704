# usage: cmake -DBUILD_FOLDER=... -DWORK_FOLDER=... -DCXX_COMPILER=... -DC_COMPILER=... [-DSANITIZE=...] -P run.cmake
# Installs a build into a fresh prefix, and builds and runs a user's project against it.
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
if(EXISTS "${WORK_FOLDER}/prefix/bin/scoremod")
  run("${WORK_FOLDER}/prefix/bin/scoremod" --help)
endif()
