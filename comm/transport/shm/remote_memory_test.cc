#include "comm/transport/shm/remote_memory.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// What the kernel is told when `reader` is admitted.
std::vector<unsigned long> ToldFor(Readers& readers, std::optional<pid_t> reader) {
  std::vector<unsigned long> told;
  readers.Admit(reader, [&](unsigned long tracer) { told.push_back(tracer); });
  return told;
}

TEST(ReadersTest, OnePeerIsNamedAndMoreAreEverybody) {
  Readers readers(/*scope=*/1, /*is_permitted=*/true);
  EXPECT_THAT(ToldFor(readers, 70), ElementsAre(70UL));
  EXPECT_THAT(ToldFor(readers, 70), IsEmpty());
  // Naming it would shut out the first.
  EXPECT_THAT(ToldFor(readers, 71), ElementsAre(Readers::kAnybody));
  EXPECT_THAT(ToldFor(readers, 72), IsEmpty());
  Readers of_many(1, true);
  EXPECT_THAT(ToldFor(of_many, std::nullopt), ElementsAre(Readers::kAnybody));
  EXPECT_THAT(ToldFor(of_many, 70), IsEmpty());
}

// The second thread is answered, and tells, between the first one's answer and its telling.
TEST(ReadersTest, WhoTellsTheKernelLateTellsItTheWiderAnswerAgain) {
  Readers readers(1, true);
  std::vector<unsigned long> kernel;
  readers.Admit(70, [&](unsigned long tracer) {
    if (kernel.empty()) {
      readers.Admit(71, [&](unsigned long others) { kernel.push_back(others); });
    }
    kernel.push_back(tracer);
  });
  EXPECT_THAT(kernel, ElementsAre(Readers::kAnybody, 70UL, Readers::kAnybody));
}

TEST(ReadersTest, NobodyIsNamedWhereItIsForbiddenOrNotNeeded) {
  Readers forbidden(1, /*is_permitted=*/false);
  EXPECT_THAT(ToldFor(forbidden, 70), IsEmpty());
  for (const int scope : {-1, 0, 2, 3}) {
    Readers readers(scope, true);
    EXPECT_THAT(ToldFor(readers, std::nullopt), IsEmpty()) << scope;
  }
}

}  // namespace
}  // namespace pelton::shm
