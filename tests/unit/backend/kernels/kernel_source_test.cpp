// Which kernels of a file a module has, and which holes it fills for them.

#include <array>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

#include "backend/cuda/text/kernel_text.hpp"
#include "backend/kernels/family.hpp"

namespace scoremod::backend::kernels {
namespace {

const std::array<cuda::KernelFile, 2> kFiles{
    {{"test/two.cuh",
      "shared /*{s}*/ 0 /*{}*/;\n/*{kernel one}*/one /*{o}*/ 1 /*{}*/;\n/*{}*/\n/*{kernel two}*/two;\n/*{}*/\n",
      "digest",
      {}},
     {"test/device.cuh", "a;\n/*{device shared}*/asks /*{s}*/ 0 /*{}*/;\n/*{}*/b;\n", "another", {}}}};

class KernelSources : public testing::Test {
 protected:
  KernelSources() { cuda::set_added_files(kFiles); }
  ~KernelSources() override { cuda::set_added_files({}); }

  static KernelSource of(std::vector<Module> modules, int one = 11) {
    KernelSource source;
    source.holes.set("s", 5);
    source.holes.set("o", one);
    source.modules = std::move(modules);
    return source;
  }
};

const Module kOne{{"test/two.cuh", {"one"}}}, kTwo{{"test/two.cuh", {"two"}}};

TEST_F(KernelSources, HaveTheKernelsThatModulesName) {
  EXPECT_EQ(render_modules(of({kOne, kTwo})),
            (std::vector<std::string>{"shared 5;\none 11;\n\n\n", "shared 5;\n\ntwo;\n\n"}));
  EXPECT_EQ(render_all(of({kOne, kTwo})), "shared 5;\none 11;\n\ntwo;\n\n");
}

TEST_F(KernelSources, NeedNoHolesOfKernelsThatAreLeftOut) {
  KernelSource source;
  source.holes.set("s", 5);
  source.modules = {kTwo};
  EXPECT_EQ(render_all(source), "shared 5;\n\ntwo;\n\n");
  EXPECT_NO_THROW(key_of(source));
  source.modules = {kOne};
  EXPECT_THROW(render_all(source), Error);
}

TEST_F(KernelSources, HaveKeysByTheirKernelsAndTheHolesOfThese) {
  EXPECT_EQ(key_of(of({kOne})), key_of(of({kOne})));
  EXPECT_NE(key_of(of({kOne})), key_of(of({kTwo})));
  EXPECT_NE(key_of(of({kOne, kTwo})), key_of(of({kTwo, kOne})));
  EXPECT_NE(key_of(of({kOne}, 1)), key_of(of({kOne}, 2)));
  EXPECT_EQ(key_of(of({kTwo}, 1)), key_of(of({kTwo}, 2)));
  EXPECT_NE(structure_of(of({kOne})), structure_of(of({kTwo})));
}

TEST_F(KernelSources, HaveAHostsTextInPlaceOfADevicesAlone) {
  const auto made = [](int s) {
    KernelSource source;
    source.holes.set("s", s);
    source.modules = {{{"test/device.cuh"}}};
    return source;
  };
  EXPECT_EQ(render_all(made(5)), "a;\nasks 5;\nb;\n");
  EXPECT_EQ(render_all(made(5), {{"shared", "host;\n"}}), "a;\nhost;\nb;\n");
  EXPECT_EQ(render_all(made(5), {{"other", "host;\n"}}), "a;\nasks 5;\nb;\n");
  EXPECT_NE(key_of(made(5)), key_of(made(6)));
}

TEST_F(KernelSources, WithAKernelThatNoFileHasAreABug) {
  EXPECT_THROW(render_all(of({{{"test/two.cuh", {"three"}}}})), Error);
}

}  // namespace
}  // namespace scoremod::backend::kernels
