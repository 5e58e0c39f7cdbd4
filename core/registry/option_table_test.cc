#include "core/registry/option_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Pair;

// Every kind of option, bound to its own variable. Threads: one. Owns: the variables.
struct Everything {
  Everything() {
    table.Bool("average", &average, "divide");
    table.BoolOrAuto("feedback", &feedback, "add what is lacking");
    table.Count("interval", &interval, 2, "steps");
    table.Number("rate", &rate, {0, 1}, "of the step");
    table.NumberOrAuto("mix", &mix, {0, 1}, "of one's own");
    table.Choice("mode", &mode, {"all", "pairs"}, "who with whom");
    table.Nested("codec.", &nested, {"codec.<option>", "the codec's", "its own", "of the codec"});
  }

  OptionTable table;
  bool average = true;
  std::optional<bool> feedback;
  uint64_t interval = 8;
  double rate = 0.7;
  std::optional<double> mix;
  std::string mode = "all";
  Options nested;
};

TEST(OptionTableTest, WritesEachValueToItsVariable) {
  Everything all;
  ASSERT_TRUE(all.table
                  .Parse({{"average", "false"},
                          {"feedback", "true"},
                          {"interval", "2"},
                          {"rate", "1"},
                          {"mix", "0.25"},
                          {"mode", "pairs"},
                          {"codec.block", "64"}})
                  .ok());
  EXPECT_FALSE(all.average);
  EXPECT_EQ(all.feedback, true);
  EXPECT_EQ(all.interval, 2u);
  EXPECT_EQ(all.rate, 1);
  EXPECT_EQ(all.mix, 0.25);
  EXPECT_EQ(all.mode, "pairs");
  EXPECT_THAT(all.nested, ElementsAre(Pair("block", "64")));
}

TEST(OptionTableTest, AutoTakesAValueBack) {
  Everything all;
  all.feedback = false;
  all.mix = 0.5;
  ASSERT_TRUE(all.table.Parse({{"feedback", "auto"}, {"mix", "auto"}}).ok());
  EXPECT_FALSE(all.feedback.has_value());
  EXPECT_FALSE(all.mix.has_value());
}

TEST(OptionTableTest, TheDefaultsAreWhatTheVariablesHold) {
  Everything all;
  EXPECT_THAT(all.table.Describe(),
              ElementsAre(Field(&OptionDescription::default_value, "true"),
                          Field(&OptionDescription::default_value, "auto"),
                          Field(&OptionDescription::default_value, "8"),
                          Field(&OptionDescription::default_value, "0.7"),
                          Field(&OptionDescription::default_value, "auto"),
                          Field(&OptionDescription::default_value, "all"),
                          Field(&OptionDescription::default_value, "the codec's")));
}

TEST(OptionTableTest, AnUnknownOptionIsAnErrorThatListsTheNames) {
  Everything all;
  EXPECT_EQ(all.table.Parse({{"averag", "true"}}).message(),
            "option 'averag' is unknown; there are: average, codec.<option>, feedback, interval, "
            "mix, mode, rate");
  EXPECT_EQ(OptionTable().Parse({{"rate", "1"}}).message(),
            "option 'rate' is unknown; there are: none");
  EXPECT_FALSE(all.table.Parse({{"codec.", "64"}}).ok());
}

TEST(OptionTableTest, ARefusedOptionIsAnErrorThatSaysWhyAndIsInNoList) {
  OptionTable table;
  table.Refuse("codec", "others have it");
  EXPECT_EQ(table.Parse({{"codec", "none"}}).message(), "there is no option codec: others have it");
  EXPECT_TRUE(table.Describe().empty());
  EXPECT_EQ(table.Parse({{"rate", "1"}}).message(), "option 'rate' is unknown; there are: none");
}

// An option's value that is none of those it takes.
struct Misfit {
  const char* option;
  const char* value;
  const char* message;
};

class OptionTableMisfitTest : public testing::TestWithParam<Misfit> {};

TEST_P(OptionTableMisfitTest, IsAnErrorThatSaysWhatFitsAndChangesNothing) {
  Everything all;
  const Misfit misfit = GetParam();
  EXPECT_EQ(all.table.Parse({{misfit.option, misfit.value}}).message(), misfit.message);
  const Everything untouched;
  EXPECT_EQ(all.average, untouched.average);
  EXPECT_EQ(all.feedback, untouched.feedback);
  EXPECT_EQ(all.interval, untouched.interval);
  EXPECT_EQ(all.rate, untouched.rate);
  EXPECT_EQ(all.mix, untouched.mix);
  EXPECT_EQ(all.mode, untouched.mode);
}

INSTANTIATE_TEST_SUITE_P(
    All, OptionTableMisfitTest,
    testing::Values(
        Misfit{"average", "yes", "option average is 'yes', not true or false"},
        Misfit{"feedback", "maybe", "option feedback is 'maybe', not auto, true or false"},
        Misfit{"interval", "1", "option interval is '1', not a whole number of at least 2"},
        Misfit{"interval", "-3", "option interval is '-3', not a whole number of at least 2"},
        Misfit{"interval", "2.5", "option interval is '2.5', not a whole number of at least 2"},
        Misfit{"rate", "1.1", "option rate is '1.1', not a number from 0 to 1"},
        Misfit{"rate", "nan", "option rate is 'nan', not a number from 0 to 1"},
        Misfit{"mix", "much", "option mix is 'much', not auto, or a number from 0 to 1"},
        Misfit{"mode", "ring", "option mode is 'ring', not one of all, pairs"}));

}  // namespace
}  // namespace pelton
