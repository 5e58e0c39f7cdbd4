#include "core/pipeline/operation_kind.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr auto kNoKind = static_cast<OperationKind>(77);

TEST(OperationTraitsTest, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  for (const OperationTraits& traits : kOperationTraits) {
    EXPECT_EQ(NameOf(traits.kind), traits.name);
    names.insert(std::string(traits.name));
  }
  EXPECT_EQ(names.size(), kOperationKindCount);
  EXPECT_FALSE(names.contains("unknown operation"));
}

// Whatever may come over a wire.
TEST(OperationTraitsTest, WhatIsNoKindHasTheTraitsOfOneThatNobodyRuns) {
  EXPECT_FALSE(IsOperationKind(kNoKind));
  EXPECT_EQ(NameOf(kNoKind), "unknown operation");
  EXPECT_EQ(TraitsOf(kNoKind).scope, KindScope::kReserved);
  EXPECT_FALSE(Reduces(kNoKind));
  EXPECT_FALSE(HasNoTensors(kNoKind));
}

// The sums that code elsewhere makes of a row hold for every row.
TEST(OperationTraitsTest, RowsDoNotContradictThemselves) {
  for (const OperationTraits& traits : kOperationTraits) {
    SCOPED_TRACE(std::string(traits.name));
    const bool is_on_root = IsOnRootOnly(traits.source) || IsOnRootOnly(traits.target);
    if (is_on_root) {
      EXPECT_TRUE(traits.has_root);
    }
    if (traits.scope != KindScope::kCollective) {
      EXPECT_FALSE(traits.reduces || traits.has_root);
      EXPECT_EQ(traits.in_place, InPlaceForm::kNever);
    }
    // What is reduced has to come from somewhere, and a form in place has to have two tensors.
    const bool has_both =
        traits.source != TensorLength::kNone && traits.target != TensorLength::kNone;
    if (traits.reduces) {
      EXPECT_TRUE(has_both);
    }
    if (traits.in_place != InPlaceForm::kNever) {
      EXPECT_TRUE(has_both);
    }
    if (traits.in_place == InPlaceForm::kTargetIsOwnChunk) {
      EXPECT_TRUE(HasChunks(traits.source));
    }
    if (traits.in_place == InPlaceForm::kSourceIsOwnChunk) {
      EXPECT_TRUE(HasChunks(traits.target));
    }
  }
}

TEST(OperationTraitsTest, OnlyTheRootOfABroadcastReadsItsTarget) {
  for (const OperationTraits& traits : kOperationTraits) {
    EXPECT_EQ(RootReadsTarget(traits.kind), traits.kind == OperationKind::kBroadcast)
        << traits.name;
  }
}

TEST(KindSetTest, ContainsWhatItWasMadeOf) {
  constexpr KindSet set = {OperationKind::kBarrier, OperationKind::kRecv};
  for (const OperationTraits& traits : kOperationTraits) {
    const bool is_in =
        traits.kind == OperationKind::kBarrier || traits.kind == OperationKind::kRecv;
    EXPECT_EQ(set.Contains(traits.kind), is_in) << traits.name;
  }
  EXPECT_FALSE(set.Contains(kNoKind));
  EXPECT_FALSE(KindSet().Contains(OperationKind::kBarrier));
}

}  // namespace
}  // namespace pelton
