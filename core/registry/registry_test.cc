#include "core/registry/registry.h"

#include "gtest/gtest.h"

namespace pelton {
namespace {

using Factory = int (*)();
using TestRegistry = Registry<Factory>;

int One() { return 1; }
int Two() { return 2; }

TEST(RegistryTest, FindsWhatWasRegisteredAndListsItSorted) {
  TestRegistry registry;
  registry.Register("two", "the second", Two);
  registry.Register("one", "the first", One);
  EXPECT_EQ(registry.Find("two")->factory(), 2);
  ASSERT_EQ(registry.List().size(), 2u);
  EXPECT_EQ(registry.List()[0].summary, "the first");
}

TEST(RegistryTest, AnUnknownNameIsAnErrorThatListsTheNames) {
  TestRegistry registry;
  registry.Register("one", "", One);
  EXPECT_EQ(registry.Find("three").status().message(), "'three' is not registered; there are: one");
}

TEST(RegistryDeathTest, ANameTakenTwiceEndsTheProcess) {
  TestRegistry registry;
  registry.Register("one", "", One);
  EXPECT_DEATH(registry.Register("one", "", Two), "'one' is registered twice");
}

}  // namespace
}  // namespace pelton
