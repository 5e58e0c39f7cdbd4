#include "core/base/cores.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace pelton {
namespace {

// A hierarchy of control groups: /, /job and /job/task.
// Threads: one. Owns: files that the test's folder keeps.
class CoresTest : public ::testing::Test {
 protected:
  CoresTest() {
    for (const std::string group : {"", "/job", "/job/task"}) mkdir((root_ + group).c_str(), 0755);
  }
  void Set(const std::string& group, const std::string& quota) {
    std::ofstream(root_ + group + "/cpu.max") << quota << "\n";
  }

  const std::string root_ =
      ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(CoresTest, WithoutAQuotaThereIsNone) {
  EXPECT_FALSE(CoresOfQuota(root_, "/job/task").has_value());
  Set("/job", "max 100000");
  EXPECT_FALSE(CoresOfQuota(root_, "/job/task").has_value());
}

TEST_F(CoresTest, TheLeastQuotaOfTheGroupsAboveCounts) {
  Set("/job/task", "800000 100000");
  EXPECT_EQ(CoresOfQuota(root_, "/job/task"), 8);
  Set("/job", "250000 100000");
  EXPECT_EQ(CoresOfQuota(root_, "/job/task"), 2);
  EXPECT_EQ(CoresOfQuota(root_, "/job"), 2);
  EXPECT_FALSE(CoresOfQuota(root_, "/").has_value());
}

TEST_F(CoresTest, LessThanACoreIsOne) {
  Set("/job", "50000 100000");
  EXPECT_EQ(CoresOfQuota(root_, "/job"), 1);
}

TEST_F(CoresTest, ThisProcessHasACore) { EXPECT_GE(UsableCores(), 1); }

}  // namespace
}  // namespace pelton
