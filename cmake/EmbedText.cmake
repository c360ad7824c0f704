# embed_text(TARGET FILE SYMBOL): makes the text of FILE a constant of the library,
#   namespace scoremod::embedded { extern const std::string_view SYMBOL; }
# so that an installed library needs no data files.
function(embed_text target file symbol)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/embedded/${symbol}.cpp")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
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
