#include "core/base/process_limits.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

rlimit Limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

TEST(DescriptorLimitTest, RaisesTheSoftLimitToTheHardOneAndNoFurther) {
  rlimit low = Limit();
  low.rlim_cur = 64;
  low.rlim_max = std::min<rlim_t>(low.rlim_max, 2 * kMostDescriptors);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_THAT(ErrorText(EMFILE), HasSubstr("this process may have 64"));
  RaiseDescriptorLimit();
  EXPECT_EQ(Limit().rlim_cur, std::min<rlim_t>(low.rlim_max, kMostDescriptors));
  EXPECT_EQ(Limit().rlim_max, low.rlim_max);
  RaiseDescriptorLimit();  // once more changes nothing
  EXPECT_EQ(Limit().rlim_cur, std::min<rlim_t>(low.rlim_max, kMostDescriptors));
}

TEST(DescriptorLimitTest, NamesOnlyWhatTheKernelSaysOfOtherErrors) {
  EXPECT_EQ(ErrorText(ECONNRESET), "Connection reset by peer");
  EXPECT_TRUE(IsExhaustion(EMFILE));
  EXPECT_FALSE(IsExhaustion(ECONNRESET));
}

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
