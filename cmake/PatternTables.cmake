# pattern_tables(TARGET FOLDER): sums up the explorer's rows in FOLDER/*.json and compiles the decisions into TARGET as sorted arrays
# (src/backend/cudnn/patterns/shipped_patterns.hpp), so that the library holds no rows and reads none when it runs.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

function(pattern_tables target folder)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/patterns/shipped_patterns.cpp")
  set(generator "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/pattern_tables.py")
  file(GLOB tables CONFIGURE_DEPENDS "${folder}/*.json")
  add_custom_command(
    OUTPUT "${generated}"
    COMMAND Python3::Interpreter "${generator}" "${generated}" ${tables}
    DEPENDS "${generator}" ${tables}
    COMMENT "Summing up the explored patterns"
    VERBATIM)
  target_sources(${target} PRIVATE "${generated}")
endfunction()
