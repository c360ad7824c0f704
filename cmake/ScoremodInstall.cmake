# `cmake --install` lays out the library, the command and what find_package(scoremod) and pkg-config need.
include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/scoremod")
install(
  TARGETS scoremod
  EXPORT scoremodTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/scoremod")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/scoremod" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT scoremodTargets NAMESPACE scoremod:: DESTINATION "${package_folder}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/scoremodConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
configure_file("${CMAKE_CURRENT_LIST_DIR}/scoremodConfig.cmake.in" "${CMAKE_CURRENT_BINARY_DIR}/scoremodConfig.cmake" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/scoremodConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/scoremodConfigVersion.cmake" DESTINATION "${package_folder}")

# scoremod.pc names its folders from its own place, so that an installed tree may be moved.
set(pkg_config_folder "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH scoremod_pc_to_prefix "${CMAKE_INSTALL_PREFIX}/${pkg_config_folder}" "${CMAKE_INSTALL_PREFIX}")
foreach(kind IN ITEMS INCLUDEDIR LIBDIR)
  string(TOLOWER "scoremod_pc_${kind}" variable)
  set(${variable} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(${variable} "${CMAKE_INSTALL_${kind}}")
    set(scoremod_pc_to_prefix ".")
  endif()
endforeach()
# What a shared library has in it, `pkg-config --libs --static` names; a static one needs it always.
set(scoremod_pc_libs "")
set(scoremod_pc_libs_private "-lhwy -lstdc++ -lm -pthread")
if(SCOREMOD_STATIC)
  set(scoremod_pc_libs " ${scoremod_pc_libs_private}")
  set(scoremod_pc_libs_private "")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/scoremod.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/scoremod.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/scoremod.pc" DESTINATION "${pkg_config_folder}")

if(TARGET scoremod_cli)
  set_target_properties(scoremod_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS scoremod_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
if(TARGET scoremod_build_plan)
  install(TARGETS scoremod_build_plan RUNTIME DESTINATION "${CMAKE_INSTALL_LIBDIR}/scoremod")
endif()
if(SKBUILD)
  # The wheel has the libraries beside the Python package, as plain files: wheels know no symbolic links. Highway, which scoremod links, is
  # among them, so that the machine that runs it needs nothing but the C++ runtime.
  set_property(TARGET scoremod PROPERTY VERSION)
  set_property(TARGET scoremod PROPERTY SOVERSION)
  set_property(TARGET scoremod PROPERTY INSTALL_RPATH "$ORIGIN")
  install(TARGETS scoremod scoremod_jax scoremod_torch LIBRARY DESTINATION scoremod COMPONENT python)
  # `python -m scoremod docs` prints them.
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/" DESTINATION scoremod/docs COMPONENT python FILES_MATCHING PATTERN "*.md" PATTERN "*.json")
  if(TARGET scoremod_build_plan)
    # In the folder where the library looks for what belongs to it. pyproject.toml builds the libraries by name, also where these are none.
    add_dependencies(scoremod_jax scoremod_build_plan scoremod_stub_driver)
    install(TARGETS scoremod_build_plan RUNTIME DESTINATION scoremod/scoremod COMPONENT python)
    install(TARGETS scoremod_stub_driver LIBRARY DESTINATION scoremod/scoremod COMPONENT python)
  endif()
  if(TARGET scoremod_cli)
    add_dependencies(scoremod_jax scoremod_cli)
    set_property(TARGET scoremod_cli PROPERTY INSTALL_RPATH "$ORIGIN/..")
    install(TARGETS scoremod_cli RUNTIME DESTINATION scoremod/bin COMPONENT python)
  endif()
  get_target_property(highway_type hwy::hwy TYPE)
  if(highway_type STREQUAL "SHARED_LIBRARY")
    install(FILES "$<TARGET_FILE:hwy::hwy>" DESTINATION scoremod RENAME "$<TARGET_SONAME_FILE_NAME:hwy::hwy>" COMPONENT python)
  endif()
endif()
