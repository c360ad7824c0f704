#include "problem/row_addressing.hpp"

#include "base/fail.hpp"

namespace scoremod::problem {

std::string RowAddressing::row_expression(const std::string& batch, const std::string& head,
                                          const std::string& position) const {
  return concat("(", batch, ") * ", strides_.batch, "LL + (", head, ") * ", strides_.head, "LL + (", position, ") * ",
                strides_.sequence, "LL");
}

}  // namespace scoremod::problem
