#include "core/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

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

}  // namespace
}  // namespace pelton
