#include "comm/transport/shm/remote_memory.h"

#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

TEST(ReadersTest, OnePeerIsNamedAndMoreAreEverybody) {
  Readers readers(/*scope=*/1, /*is_permitted=*/true);
  EXPECT_EQ(readers.Admit(70), 70UL);
  EXPECT_EQ(readers.Admit(70), std::nullopt);
  EXPECT_EQ(readers.Admit(71), Readers::kAnybody);  // naming it would shut out the first
  EXPECT_EQ(readers.Admit(72), std::nullopt);
  Readers of_many(1, true);
  EXPECT_EQ(of_many.Admit(std::nullopt), Readers::kAnybody);
  EXPECT_EQ(of_many.Admit(70), std::nullopt);
}

TEST(ReadersTest, NobodyIsNamedWhereItIsForbiddenOrNotNeeded) {
  EXPECT_EQ(Readers(1, /*is_permitted=*/false).Admit(70), std::nullopt);
  for (const int scope : {-1, 0, 2, 3}) {
    EXPECT_EQ(Readers(scope, true).Admit(std::nullopt), std::nullopt) << scope;
  }
}

}  // namespace
}  // namespace pelton::shm
