# For the wheel alone: its libraries run where the C library is glibc 2.28 or newer, which auditwheel names manylinux_2_28.
#
# g++ compiles as in every other build, so that the wheel has the code that the tests run, and ccache has its objects. Zig links: it has the
# symbols and the start files of each glibc. libstdc++ is linked statically, for the one of an old system lacks what g++ 12 asks for. Zig's own
# libc++ would not do: with it exceptions of one library are unknown in another. What Debian 12's headers and libstdc++.a take from a glibc
# that is newer still is in NewerGlibc.c. The linker names what is missing there.
set(CMAKE_C_COMPILER cc)
set(CMAKE_CXX_COMPILER c++)
# CMake learns from g++'s own linking where Debian's packages are, and can't from Zig's.
set(CMAKE_LIBRARY_ARCHITECTURE "${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu")

execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE scoremod_glibc OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "^glibc " "" scoremod_glibc "${scoremod_glibc}")
if(scoremod_glibc VERSION_GREATER 2.36)
  message(FATAL_ERROR "The wheel for other machines: expected the headers of glibc 2.36 or older, found ${scoremod_glibc}. Build it on Debian 12, "
                      "as .github/workflows/release.yml does.")
endif()

# try_compile() has to know it, too.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SCOREMOD_ZIG)
set(SCOREMOD_ZIG "" CACHE FILEPATH "Zig's program, of the package ziglang in build/wheel-tools")
if(NOT SCOREMOD_ZIG)
  file(GLOB SCOREMOD_ZIG "${CMAKE_CURRENT_LIST_DIR}/../build/wheel-tools/lib/python3*/site-packages/ziglang/zig")
endif()
if(NOT EXISTS "${SCOREMOD_ZIG}")
  message(FATAL_ERROR "SCOREMOD_ZIG: expected Zig's program, found '${SCOREMOD_ZIG}'. ./dev wheel installs it; pip install ziglang does, too.")
endif()

# A path of its own for each build tree: try_compile() has one, and it lies in the tree's.
set(scoremod_newer_glibc "${CMAKE_BINARY_DIR}/NewerGlibc.o")
if(NOT EXISTS "${scoremod_newer_glibc}")
  execute_process(
    COMMAND "${CMAKE_C_COMPILER}" -std=gnu11 -O2 -fPIC -fvisibility=hidden -c "${CMAKE_CURRENT_LIST_DIR}/NewerGlibc.c" -o "${scoremod_newer_glibc}"
            COMMAND_ERROR_IS_FATAL ANY)
endif()
execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libstdc++.a OUTPUT_VARIABLE scoremod_libstdcxx OUTPUT_STRIP_TRAILING_WHITESPACE
                        COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libgcc_s.so.1 OUTPUT_VARIABLE scoremod_libgcc OUTPUT_STRIP_TRAILING_WHITESPACE
                        COMMAND_ERROR_IS_FATAL ANY)

set(zig_links "\"${SCOREMOD_ZIG}\" cc -target ${CMAKE_HOST_SYSTEM_PROCESSOR}-linux-gnu.2.28")
set(ends "-o <TARGET> <OBJECTS> <LINK_LIBRARIES>")
# This system's libgcc_s has symbols of this system's C library. A user's has those of the user's.
set(system "\"${scoremod_libgcc}\" -Wl,--allow-shlib-undefined -lm -lpthread -ldl")
set(cxx "\"${scoremod_newer_glibc}\" \"${scoremod_libstdcxx}\"")
set(shared "-shared <LINK_FLAGS> <SONAME_FLAG><TARGET_SONAME>")
set(CMAKE_C_LINK_EXECUTABLE "${zig_links} <LINK_FLAGS> ${ends} ${system}")
set(CMAKE_C_CREATE_SHARED_MODULE "${zig_links} -shared <LINK_FLAGS> ${ends} ${system}")
set(CMAKE_CXX_LINK_EXECUTABLE "${zig_links} <LINK_FLAGS> ${ends} ${cxx} ${system}")
set(CMAKE_CXX_CREATE_SHARED_LIBRARY "${zig_links} ${shared} ${ends} ${cxx} ${system}")
set(CMAKE_CXX_CREATE_SHARED_MODULE "${zig_links} -shared <LINK_FLAGS> ${ends} ${cxx} ${system}")
