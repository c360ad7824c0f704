# lib/scoremod/stub_driver.so: a CUDA driver without a device, behind which cuDNN builds plans on a machine that has no driver. The
# loader matches it by its SONAME once it is open. Neither its folder nor its name is one that ldconfig or the loader searches, so that it
# never takes a real driver's place.

# Every entry point that cuda.h declares, under the names that a driver exports: cuMemAlloc, cuMemAlloc_v2, cuMemAlloc_v2_ptds ...
file(READ "${SCOREMOD_CUDA_INCLUDE}/cuda.h" scoremod_cuda_header)
set(scoremod_driver_names cuProfilerInitialize cuProfilerStart cuProfilerStop)
string(REGEX MATCHALL "CUDAAPI[ \n]+cu[A-Z][A-Za-z0-9_]+" declared "${scoremod_cuda_header}")
string(REGEX MATCHALL "define +cu[A-Z][A-Za-z0-9_]+ +cu[A-Z][A-Za-z0-9_]+" renamed "${scoremod_cuda_header}")
string(REGEX MATCHALL "__CUDA_API_PT[DS][SZ]\\(cu[A-Z][A-Za-z0-9_]+" per_thread "${scoremod_cuda_header}")
foreach(match IN LISTS declared renamed)
  string(REGEX MATCHALL "cu[A-Z][A-Za-z0-9_]+" names "${match}")
  list(APPEND scoremod_driver_names ${names})
endforeach()
foreach(match IN LISTS per_thread)
  string(REGEX REPLACE "__CUDA_API_(.*)\\((.*)" "\\1" suffix "${match}")
  string(REGEX REPLACE "__CUDA_API_(.*)\\((.*)" "\\2" name "${match}")
  string(TOLOWER "${suffix}" suffix)
  list(APPEND scoremod_driver_names "${name}" "${name}_${suffix}")
endforeach()
list(REMOVE_DUPLICATES scoremod_driver_names)
list(SORT scoremod_driver_names)

# Whatever its arguments are, the answer is CUDA_ERROR_NO_DEVICE; what stub_driver.c defines takes precedence.
set(scoremod_driver_definitions "")
foreach(name IN LISTS scoremod_driver_names)
  string(APPEND scoremod_driver_definitions "__attribute__((weak)) int ${name}(void);\nint ${name}(void) { return 100; }\n")
endforeach()
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/stub_driver_entry_points.c" @ONLY
     CONTENT "@scoremod_driver_definitions@")

add_library(scoremod_stub_driver MODULE src/backend/cuda/device/stub_driver.c
                                            "${CMAKE_CURRENT_BINARY_DIR}/stub_driver_entry_points.c")
set_target_properties(
  scoremod_stub_driver
  PROPERTIES PREFIX ""
             OUTPUT_NAME stub_driver
             SUFFIX .so
             LIBRARY_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/scoremod")
target_include_directories(scoremod_stub_driver SYSTEM PRIVATE ${SCOREMOD_CUDA_INCLUDE})
# For what dlfcn.h declares beyond POSIX.
target_compile_definitions(scoremod_stub_driver PRIVATE _GNU_SOURCE)
target_link_libraries(scoremod_stub_driver PRIVATE scoremod_warnings ${CMAKE_DL_LIBS})
target_link_options(scoremod_stub_driver PRIVATE LINKER:-soname,libcuda.so.1)
install(TARGETS scoremod_stub_driver LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/scoremod")
