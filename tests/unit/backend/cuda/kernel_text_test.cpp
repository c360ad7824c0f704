#include "backend/cuda/text/kernel_text.hpp"

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::backend::cuda {
namespace {

template <class Call>
std::string failure(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBug);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(KernelText, FillsEveryPlaceOfAHole) {
  EXPECT_EQ(fill("f(/*{a}*/ 1 /*{}*/, /*{b}*/ x /*{}*/, /*{a}*//*{}*/)", {{"a", 23}, {"b", "y[i]"}}),
            "f(23, y[i], 23)");
  EXPECT_EQ(fill("nothing", {}), "nothing");
}

TEST(KernelText, AValueIsNotReadAgain) { EXPECT_EQ(fill("/*{a}*//*{}*/", {{"a", "/*{b}*/"}}), "/*{b}*/"); }

TEST(KernelText, AHoleInAHoleBelongsToItsPart) {
  constexpr std::string_view kText = "{/*{loop}*/<!/*{body}*/ a /*{}*/>/*{}*/ /*{end}*/ b /*{}*/}";
  EXPECT_EQ(part(kText, "loop"), "<!/*{body}*/ a /*{}*/>");
  EXPECT_EQ(part(kText, "body"), " a ");
  EXPECT_EQ(part(kText, "end"), " b ");
  const std::string loop = fill(part(kText, "loop"), {{"body", 1}}) + fill(part(kText, "loop"), {{"body", 2}});
  EXPECT_EQ(fill(kText, {{"loop", loop}, {"end", ""}}), "{<!1><!2> }");
}

TEST(KernelText, WhatDoesNotFitIsABug) {
  EXPECT_NE(failure([] { fill("/*{a}*/ 1 /*{}*/", {}); }).find("hole 'a'"), std::string::npos);
  EXPECT_NE(failure([] { fill("x", {{"a", 1}}); }).find("no hole 'a'"), std::string::npos);
  EXPECT_NE(failure([] { fill("/*{a}*/ 1", {{"a", 1}}); }).find("no end"), std::string::npos);
  EXPECT_NE(failure([] { fill("/*{a", {{"a", 1}}); }).find("no '}*/'"), std::string::npos);
  EXPECT_NE(failure([] { fill("1 /*{}*/", {}); }).find("without a beginning"), std::string::npos);
  EXPECT_NE(failure([] { part("/*{a}*/ 1 /*{}*/", "b"); }).find("no part 'b'"), std::string::npos);
}

}  // namespace
}  // namespace scoremod::backend::cuda
