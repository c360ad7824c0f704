#include "support/emulated_float8.hpp"

namespace scoremod::test {

std::string_view emulated_float8_primitives() {
  return R"text(
inline unsigned e4m3_quad_of(float x0, float x1, float x2, float x3) {
  return emulated::e4m3_of(x0) | emulated::e4m3_of(x1) << 8 | emulated::e4m3_of(x2) << 16 | emulated::e4m3_of(x3) << 24;
}
template <int kColumns>
struct Float8Product {
  static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    emulated::ask(d, kColumns, {nullptr, a, false}, b, adds, emulated::Element::kE4m3);
  }
  static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds) {
    emulated::ask(d, kColumns, {a, 0, false}, b, adds, emulated::Element::kE4m3);
  }
};
)text";
}

}  // namespace scoremod::test
