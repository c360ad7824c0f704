# lib/scoremod/build_plan: the program in which the library builds a plan beside another one. It is no command for people, and so not in bin.
add_executable(scoremod_build_plan src/planner/build_plan_main.cpp)
set_target_properties(scoremod_build_plan PROPERTIES OUTPUT_NAME build_plan BUILD_RPATH "$ORIGIN/.." INSTALL_RPATH "$ORIGIN/.."
                                                     RUNTIME_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/scoremod")
target_include_directories(scoremod_build_plan PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
target_link_libraries(scoremod_build_plan PRIVATE scoremod scoremod_warnings)
