#include <cmath>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

using zoo::OperandNeed;
using zoo::Parameters;
using Shape = std::vector<std::int64_t>;

constexpr zoo::Sizes kSizes{2, 3, 9, 11};

using test::refusal;

/// Valid parameters for the required ones of each entry.
Parameters required(const zoo::Entry& entry) {
  Parameters parameters;
  for (const zoo::Parameter& parameter : entry.parameters) {
    if (parameter.default_value) continue;
    if (parameter.type == zoo::ParameterType::kInt)
      parameters[parameter.name] = std::int64_t{3};
    else
      parameters[parameter.name] = 3.0;
  }
  return parameters;
}

TEST(ZooEntries, AreDescribedAndNamedOnce) {
  std::set<std::string> names;
  for (const zoo::Entry& entry : zoo::entries()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    EXPECT_EQ(entry.summary.find('\n'), std::string::npos) << entry.name;
    EXPECT_EQ(zoo::find(entry.name), &entry);
    for (const zoo::Parameter& parameter : entry.parameters) EXPECT_FALSE(parameter.meaning.empty()) << entry.name;
  }
  EXPECT_EQ(names.size(), 18u);
  EXPECT_EQ(zoo::find("nothing"), nullptr);
}

TEST(ZooEntries, EachIsMadeWithItsDefaultsAndNamesItsOperands) {
  for (const zoo::Entry& entry : zoo::entries()) {
    const zoo::Modifier made = zoo::make(entry.name, required(entry), kSizes);
    EXPECT_EQ(made.kind, entry.kind) << entry.name;
    EXPECT_EQ(made.score_mod.empty(), entry.kind == zoo::Kind::kMaskMod) << entry.name;
    EXPECT_EQ(made.mask_mod.empty(), entry.kind == zoo::Kind::kScoreMod) << entry.name;
    const Program program = trace(made.score_mod, made.mask_mod);
    ASSERT_EQ(program.operands().size(), entry.operands.size()) << entry.name;
    ASSERT_EQ(made.operands.size(), entry.operands.size()) << entry.name;
    for (std::size_t i = 0; i < entry.operands.size(); ++i) {
      const OperandDecl& decl = program.operands()[i];
      EXPECT_EQ(made.operands[i].name, decl.name) << entry.name;
      EXPECT_EQ(made.operands[i].shape.size(), static_cast<std::size_t>(decl.rank())) << entry.name;
      EXPECT_EQ(entry.operands[i].type, decl.type) << entry.name;
      EXPECT_EQ(made.operands[i].dtype, decl.type == Type::kF32 ? DType::kF32 : DType::kI32) << entry.name;
      EXPECT_LE(made.operands[i].low, made.operands[i].high) << entry.name;
    }
  }
}

TEST(ZooEntries, EachOperandCanBeRenamed) {
  for (const zoo::Entry& entry : zoo::entries()) {
    Parameters parameters = required(entry);
    for (const zoo::OperandRule& rule : entry.operands) parameters[rule.parameter] = "my_" + rule.parameter;
    const zoo::Modifier made = zoo::make(entry.name, parameters, kSizes);
    for (std::size_t i = 0; i < entry.operands.size(); ++i) {
      EXPECT_EQ(made.operands[i].name, "my_" + entry.operands[i].parameter) << entry.name;
    }
  }
}

TEST(ZooEntries, AreWhatTheFunctionsMake) {
  const auto score = [](const char* name, const Parameters& parameters) {
    return trace(zoo::make(name, parameters, kSizes).score_mod);
  };
  const auto mask = [](const char* name, const Parameters& parameters) {
    return trace(zoo::make(name, parameters, kSizes).mask_mod);
  };
  const auto integer = [](std::int64_t value) { return zoo::Value(value); };
  EXPECT_EQ(score("soft_cap", {{"cap", 30.0}}), trace(zoo::soft_cap(30)));
  EXPECT_EQ(score("soft_cap", {{"cap", integer(30)}}), trace(zoo::soft_cap(30)));
  EXPECT_EQ(score("alibi", {{"symmetric", true}}), trace(zoo::alibi(true)));
  EXPECT_EQ(score("relative_bias", {{"scale", 0.5}}), trace(zoo::relative_bias(0.5f)));
  EXPECT_EQ(score("t5_bias", {{"bidirectional", false}, {"num_buckets", integer(8)}, {"max_distance", integer(20)}}),
            trace(zoo::t5_bias(false, 8, 20)));
  EXPECT_EQ(score("full_bias", {{"axes", "h, kv_idx"}}), trace(zoo::full_bias({Axis::kHead, Axis::kKey})));
  EXPECT_EQ(score("full_bias", {{"axes", ""}}), trace(zoo::full_bias({})));
  EXPECT_EQ(score("relative_table", {{"max_distance", integer(4)}}), trace(zoo::relative_table(4)));
  EXPECT_EQ(score("head_temperature", {}), trace(zoo::head_temperature()));
  EXPECT_EQ(mask("causal", {}), trace(zoo::causal()));
  EXPECT_EQ(mask("causal_bottom_right", {}), trace(zoo::causal_bottom_right(9, 11)));
  EXPECT_EQ(mask("sliding_window", {{"window", integer(4)}}), trace(zoo::sliding_window(4)));
  EXPECT_EQ(mask("causal_sliding_window", {{"window", integer(4)}}), trace(zoo::causal_sliding_window(4)));
  EXPECT_EQ(mask("prefix_lm", {{"prefix", integer(4)}}), trace(zoo::prefix_lm(4)));
  EXPECT_EQ(mask("prefix_lm_per_batch", {}), trace(zoo::prefix_lm_per_batch()));
  EXPECT_EQ(mask("documents", {}), trace(zoo::documents()));
  EXPECT_EQ(mask("padding", {}), trace(zoo::padding()));
  EXPECT_EQ(mask("dilated_window", {{"window", integer(2)}, {"dilation", integer(3)}}),
            trace(zoo::dilated_window(2, 3)));
  EXPECT_EQ(mask("neighborhood_2d", {{"width", integer(4)}, {"radius_x", integer(1)}, {"radius_y", integer(2)}}),
            trace(zoo::neighborhood_2d(4, 1, 2)));
  EXPECT_EQ(mask("global_window", {{"global_tokens", integer(2)}, {"window", integer(3)}}),
            trace(zoo::global_window(2, 3)));
}

TEST(ZooEntries, ShapesFollowTheSizes) {
  const auto shapes = [](const char* name, const Parameters& parameters) {
    std::vector<Shape> found;
    for (const OperandNeed& need : zoo::make(name, parameters, kSizes).operands) found.push_back(need.shape);
    return found;
  };
  EXPECT_EQ(shapes("alibi", {}), (std::vector<Shape>{{3}}));
  EXPECT_EQ(shapes("t5_bias", {{"num_buckets", std::int64_t{16}}}), (std::vector<Shape>{{16, 3}}));
  EXPECT_EQ(shapes("full_bias", {}), (std::vector<Shape>{{2, 3, 9, 11}}));
  EXPECT_EQ(shapes("full_bias", {{"axes", "b q_idx"}}), (std::vector<Shape>{{2, 9}}));
  EXPECT_EQ(shapes("relative_table", {{"max_distance", std::int64_t{5}}}), (std::vector<Shape>{{3, 11}}));
  EXPECT_EQ(shapes("documents", {}), (std::vector<Shape>{{2, 9}, {2, 11}}));
  EXPECT_EQ(shapes("padding", {}), (std::vector<Shape>{{2}}));
}

TEST(ZooEntries, BadRequestsAreRefused) {
  struct Case {
    const char* name;
    Parameters parameters;
    const char* message;
  };
  const auto integer = [](std::int64_t value) { return zoo::Value(value); };
  const std::vector<Case> cases = {
      {"soft_capp",
       {},
       "there is no ready-made modifier 'soft_capp' (did you mean 'soft_cap'?); there are: soft_cap, alibi"},
      {"soft_cap", {}, "soft_cap: parameter 'cap' is missing: the bound, > 0"},
      {"soft_cap", {{"cap", true}}, "parameter 'cap' must be of type float, found the bool true"},
      {"soft_cap", {{"cap", "50"}}, "must be of type float, found the string '50'"},
      {"soft_cap", {{"cap", 0.0}}, "soft_cap: expected cap > 0 and finite, found 0"},
      {"soft_cap", {{"cap", 1e300}}, "must be finite and within float32, found 1e+300"},
      {"soft_cap", {{"cap", NAN}}, "must be finite and within float32, found nan"},
      {"soft_cap", {{"cap", 5.0}, {"window", integer(1)}}, "soft_cap: there is no parameter 'window'; there are: cap"},
      {"causal", {{"cap", 5.0}}, "causal: there is no parameter 'cap'; there are: none"},
      {"alibi", {{"symmetric", integer(1)}}, "parameter 'symmetric' must be of type bool, found the int 1"},
      {"alibi", {{"slopes", "score"}}, "must be an operand's name"},
      {"alibi", {{"slopes", "2x"}}, "must be an operand's name"},
      {"sliding_window", {{"window", 2.5}}, "parameter 'window' must be of type int, found the float 2.5"},
      {"sliding_window", {{"window", integer(-1)}}, "sliding_window: expected window >= 0, found -1"},
      {"sliding_window", {{"window", integer(1LL << 40)}}, "must be within int32"},
      {"causal_sliding_window", {{"window", integer(0)}}, "expected window >= 1, found 0"},
      {"dilated_window", {{"window", integer(1 << 20)}, {"dilation", integer(1 << 20)}}, "within int32"},
      {"dilated_window", {{"window", integer(1)}, {"dilation", integer(0)}}, "expected dilation >= 1, found 0"},
      {"neighborhood_2d",
       {{"width", integer(0)}, {"radius_x", integer(1)}, {"radius_y", integer(1)}},
       "expected width >= 1"},
      {"full_bias", {{"axes", "h, b"}}, "in that order"},
      {"full_bias", {{"axes", "h h"}}, "in that order"},
      {"full_bias", {{"axes", "head"}}, "found 'head'"},
      {"relative_table", {{"max_distance", integer(-1)}}, "expected 0 <= max_distance"},
      {"t5_bias", {{"num_buckets", integer(5)}}, "expected num_buckets of 4 to 256, even, found 5"},
      {"documents", {{"key_documents", "query_documents"}}, "expected two operand names"},
  };
  for (const Case& bad : cases) {
    const std::string message = refusal([&] { zoo::make(bad.name, bad.parameters, kSizes); });
    EXPECT_NE(message.find(bad.message), std::string::npos) << bad.name << ": " << message;
  }
  EXPECT_NE(refusal([] { zoo::make("causal", {}, {0, 1, 1, 1}); }).find("sizes of at least 1"), std::string::npos);
}

TEST(ZooCombine, ComposesInOrderAndKeepsWhatAllKeep) {
  const std::vector<zoo::Modifier> modifiers{zoo::make("padding", {}, kSizes), zoo::make("alibi", {}, kSizes),
                                             zoo::make("soft_cap", {{"cap", 5.0}}, kSizes),
                                             zoo::make("causal", {}, kSizes)};
  const zoo::Combination made = zoo::combine(modifiers);
  EXPECT_EQ(made.program, Program::parse("operand slopes: f32 [h]\noperand lengths: i32 [b]\n"
                                         "value = 5.0 * tanh((score + slopes * f32(kv_idx - q_idx)) / 5.0)\n"
                                         "keep = kv_idx < lengths & q_idx >= kv_idx"));
  ASSERT_EQ(made.operands.size(), 2u);
  EXPECT_EQ(made.operands[0].name, "slopes");
  EXPECT_EQ(made.operands[1].name, "lengths");
  EXPECT_EQ(zoo::combine({}).program, Program());
}

TEST(ZooCombine, SharesOperandsThatAgreeAndRefusesOthers) {
  const auto lengths = zoo::make("padding", {{"lengths", "n"}}, kSizes);
  const auto prefix = zoo::make("prefix_lm_per_batch", {{"prefix_lengths", "n"}}, kSizes);
  EXPECT_EQ(zoo::combine(std::vector{lengths, prefix}).operands.size(), 1u);
  const auto slopes = zoo::make("alibi", {{"slopes", "n"}}, kSizes);
  EXPECT_EQ(refusal([&] {
              zoo::combine(std::vector{lengths, slopes});
            }),
            "operand 'n' is needed as i32 [2] and as f32 [3]: give one of the modifiers another operand name");
  const auto temperature = zoo::make("head_temperature", {{"temperature", "x"}}, kSizes);
  const auto table = zoo::make("relative_table", {{"table", "x"}, {"max_distance", std::int64_t{1}}}, kSizes);
  EXPECT_NE(refusal([&] {
              zoo::combine(std::vector{temperature, table});
            }).find("f32 [3] and as f32 [3, 3]"),
            std::string::npos);
}

}  // namespace
}  // namespace scoremod
