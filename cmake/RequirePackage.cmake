# scoremod_require("PACKAGE [VERSION]" APT_PACKAGE ...): find_package() of each, and one message that says what to install for
# all that are missing. Only targets are seen outside, no variables.
function(scoremod_require)
  set(missing "")
  set(packages "")
  while(ARGN)
    list(POP_FRONT ARGN wanted apt_package)
    string(REPLACE " " ";" arguments "${wanted}")
    list(GET arguments 0 name)
    find_package(${arguments} QUIET)
    if(NOT ${name}_FOUND)
      list(APPEND missing "${wanted}")
      string(APPEND packages " ${apt_package}")
    endif()
  endwhile()
  if(missing)
    list(JOIN missing ", " missing)
    message(FATAL_ERROR "CMake does not find here what scoremod is built with: ${missing}. On Debian and Ubuntu run\n"
                        "  apt-get install${packages}\n"
                        "as root; ./dev setup installs all that the project needs. For packages in another place set CMAKE_PREFIX_PATH.")
  endif()
endfunction()
