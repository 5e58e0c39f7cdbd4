#include "tools/daemon/daemon_options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace pelton {
namespace {

const std::vector<std::string> kPlace = {"--socket",       "/run/s",        "--rank",     "1",
                                         "--world-size=2", "--coordinator", "127.0.0.1:7"};

// Threads: one. Owns: nothing; it clears the variables that flags set.
class DaemonOptionsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "PELTON_COORDINATOR", "PELTON_TIMEOUT"}) {
      unsetenv(name);
    }
    setenv("PELTON_JOB_TOKEN", "a-token-of-sixteen-bytes-or-more", 1);
  }

  static std::vector<std::string> With(std::vector<std::string> more) {
    std::vector<std::string> words = kPlace;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static std::string ErrorOf(std::vector<std::string> words) {
    const auto parsed = ParseDaemonOptions(std::move(words));
    EXPECT_FALSE(parsed.ok());
    return std::string(parsed.status().message());
  }

  static std::string FileWith(const std::string& text) {
    const std::string path = testing::TempDir() + "/flags";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(DaemonOptionsTest, FlagsSayTheRanksPlace) {
  const auto parsed = ParseDaemonOptions(With({"--job", "j", "--timeout", "3.5"}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->socket, "/run/s");
  EXPECT_EQ(parsed->backend.job, "j");
  EXPECT_EQ(parsed->backend.rank, Rank(1));
  EXPECT_EQ(parsed->backend.world_size, WorldSize(2));
  EXPECT_EQ(parsed->backend.operation_timeout, absl::Seconds(3.5));
  EXPECT_FALSE(parsed->backend.serves_coordinator);
}

TEST_F(DaemonOptionsTest, AFileOfFlagsIsReadWithItsComments) {
  const std::string path = FileWith(
      "# of rank 1\n--idle-timeout 7  # seconds\n--verbose\n--step-grace 3\n--trainer-grace=60\n");
  const auto parsed = ParseDaemonOptions(With({"--flags-file", path}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->idle_timeout, absl::Seconds(7));
  EXPECT_TRUE(parsed->is_verbose);
  EXPECT_EQ(parsed->step_grace, absl::Seconds(3));
  EXPECT_EQ(parsed->trainer_grace, absl::Seconds(60));
}

TEST_F(DaemonOptionsTest, ATrainersPlaceIsKeptForAMinuteUnlessItIsSaid) {
  EXPECT_EQ(ParseDaemonOptions(With({}))->trainer_grace, absl::Minutes(1));
  EXPECT_EQ(ParseDaemonOptions(With({"--trainer-grace", "0"}))->trainer_grace,
            absl::ZeroDuration());
}

TEST_F(DaemonOptionsTest, ADaemonIsToldThatItsTrainerHasNoHeir) {
  const auto parsed = ParseDaemonOptions({"--socket", "/run/s", "--no-heir"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->action, DaemonOptions::Action::kNoHeir);
}

TEST_F(DaemonOptionsTest, ATokenMayComeFromAFile) {
  unsetenv("PELTON_JOB_TOKEN");
  const std::string path = FileWith("another-token-of-many-bytes\n");
  const auto parsed = ParseDaemonOptions(With({"--token-file", path}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->backend.token, "another-token-of-many-bytes");
}

TEST_F(DaemonOptionsTest, ErrorsNameTheFlagAndItsValue) {
  EXPECT_NE(ErrorOf(With({"--nonsense", "1"})).find("'--nonsense'"), std::string::npos);
  EXPECT_NE(ErrorOf(With({"--job"})).find("'--job'"), std::string::npos);
  EXPECT_NE(ErrorOf(With({"--idle-timeout", "-1"})).find("'-1'"), std::string::npos);
  EXPECT_NE(ErrorOf(With({"--trainer-grace", "-2"})).find("'-2'"), std::string::npos);
  EXPECT_NE(ErrorOf(With({"--step-grace", "inf"})).find("'inf'"), std::string::npos);
  EXPECT_NE(ErrorOf(With({"--flags-file", "/nowhere"})).find("/nowhere"), std::string::npos);
  EXPECT_NE(ErrorOf(With({"--world-size", "none"})).find("WORLD_SIZE='none'"), std::string::npos);
  EXPECT_NE(ErrorOf({"--rank", "0"}).find("--socket"), std::string::npos);
}

TEST_F(DaemonOptionsTest, ToolsNeedNoPlaceInTheJob) {
  for (const auto& [flag, action] : {std::pair{"--stop", DaemonOptions::Action::kStop},
                                     std::pair{"--status", DaemonOptions::Action::kStatus}}) {
    const auto parsed = ParseDaemonOptions({"--socket", "/run/s", flag, "--json"});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->action, action);
    EXPECT_TRUE(parsed->as_json);
  }
  EXPECT_NE(DaemonHelp().find("--idle-timeout"), std::string::npos);
}

}  // namespace
}  // namespace pelton
