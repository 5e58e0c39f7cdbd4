#include "backend/environment.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "backend/backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::vector<std::pair<std::string, std::string>>;

constexpr char kSecret[] = "abcdefgh12345678";

// What a launcher sets, then `others`; gone when the test ends.
class EnvironmentTest : public ::testing::Test {
 protected:
  ~EnvironmentTest() override {
    for (const auto& [name, value] : set_) unsetenv(name.c_str());
  }

  absl::StatusOr<BackendOptions> Read(const Variables& others) {
    Set({{"RANK", "1"},
         {"WORLD_SIZE", "2"},
         {"PELTON_COORDINATOR", "127.0.0.1:4000"},
         {"PELTON_JOB_TOKEN", kSecret}});
    Set(others);
    return OptionsFromEnvironment();
  }
  std::string ErrorOf(const Variables& others) {
    const absl::Status status = Read(others).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("bfrun -np 4 ./program"), Not(HasSubstr("abcd"))));
    return std::string(status.message());
  }

 private:
  void Set(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
      set_.emplace_back(name, value);
    }
  }
  Variables set_;
};

TEST_F(EnvironmentTest, ADaemonsSocketNeedsNoToken) {
  const absl::StatusOr<BackendOptions> options =
      Read({{"RANK", "0"}, {"PELTON_COORDINATOR", "unix:/run/s"}, {"PELTON_JOB_TOKEN", ""}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->coordinator_address, "unix:/run/s");
  EXPECT_EQ(options->token, "");
  EXPECT_FALSE(options->serves_coordinator);
}

TEST_F(EnvironmentTest, ALaunchersVariablesAreARanksPlace) {
  const BackendOptions options = Read({{"PELTON_TIMEOUT", "7.5"},
                                       {"PELTON_HEARTBEAT_TIMEOUT", "3"},
                                       {"PELTON_WIRE", "ucx"},
                                       {"PELTON_INTERFACE", "lo"}})
                                     .value();
  EXPECT_EQ(options.rank, Rank(1));
  EXPECT_EQ(options.world_size, WorldSize(2));
  EXPECT_EQ(options.coordinator_address, "127.0.0.1:4000");
  EXPECT_EQ(options.token, kSecret);
  EXPECT_FALSE(options.serves_coordinator);
  EXPECT_EQ(options.operation_timeout, absl::Seconds(7.5));
  EXPECT_EQ(options.join_timeout, absl::Seconds(7.5));
  EXPECT_EQ(options.heartbeat_timeout, absl::Seconds(3));
  EXPECT_EQ(options.wire, "ucx");
  EXPECT_EQ(options.interface, "lo");
  EXPECT_TRUE(Read({{"RANK", "0"}}).value().serves_coordinator);
}

bool HasIpv6Loopback() {
  sockaddr_in6 loopback = {};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const int bound = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has = bind(bound, reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback)) == 0;
  close(bound);
  return has;
}

TEST_F(EnvironmentTest, RankZeroServesTheCoordinatorAtANameAndAtAnIpv6Address) {
  for (const char* address : {"localhost:0", "[::1]:0"}) {
    if (address[0] == '[' && !HasIpv6Loopback()) continue;
    const absl::StatusOr<BackendOptions> options =
        Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PELTON_COORDINATOR", address}});
    ASSERT_TRUE(options.ok()) << options.status();
    const auto backend = Backend::Start(*options);
    EXPECT_TRUE(backend.ok()) << backend.status();
  }
}

TEST_F(EnvironmentTest, ATableOfSchedulesIsReadWhereTheBackendIs) {
  const std::string path = testing::TempDir() + "/schedules";
  std::ofstream(path) << "allreduce 0 0 ring\n";
  const absl::StatusOr<BackendOptions> options = Read({{"PELTON_SCHEDULES", path}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->schedules, "allreduce 0 0 ring\n");
  EXPECT_THAT(ErrorOf({{"PELTON_SCHEDULES", "/no/such/file"}}),
              HasSubstr("PELTON_SCHEDULES='/no/such/file' in the environment: must be a file"));
  const absl::StatusOr<BackendOptions> attached = Read({{"PELTON_COORDINATOR", "unix:/tmp/0"}});
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->schedules, "");
}

TEST_F(EnvironmentTest, WhatIsMissingOrMalformedIsNamed) {
  EXPECT_THAT(ErrorOf({{"RANK", ""}}), HasSubstr("RANK=''"));
  EXPECT_THAT(ErrorOf({{"RANK", "2"}}), HasSubstr("RANK='2' in the environment: must be below"));
  EXPECT_THAT(ErrorOf({{"RANK", "1"}, {"WORLD_SIZE", "two"}}), HasSubstr("WORLD_SIZE='two'"));
  EXPECT_THAT(ErrorOf({{"WORLD_SIZE", "2"}, {"PELTON_COORDINATOR", "here"}}),
              HasSubstr("PELTON_COORDINATOR='here' in the environment: must be host:port"));
  EXPECT_THAT(ErrorOf({{"PELTON_COORDINATOR", "localhost:1"}, {"PELTON_JOB_TOKEN", "abcdefg"}}),
              HasSubstr("PELTON_JOB_TOKEN='...'"));
  EXPECT_THAT(ErrorOf({{"PELTON_JOB_TOKEN", kSecret}, {"PELTON_TIMEOUT", "-1"}}),
              HasSubstr("PELTON_TIMEOUT='-1' in the environment: must be a number of seconds"));
  EXPECT_THAT(ErrorOf({{"PELTON_TIMEOUT", "60"}, {"PELTON_HEARTBEAT_TIMEOUT", "inf"}}),
              HasSubstr("PELTON_HEARTBEAT_TIMEOUT='inf'"));
  EXPECT_THAT(ErrorOf({{"PELTON_HEARTBEAT_TIMEOUT", "0"}}), HasSubstr("must be a number"));
}

TEST_F(EnvironmentTest, TheTokenCrossesNoNetworkInClear) {
  const absl::Status refused = Read({{"PELTON_COORDINATOR", "192.0.2.1:4000"}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("PELTON_COORDINATOR=192.0.2.1:4000: the job's token"));
  EXPECT_TRUE(Read({{"PELTON_TLS_CA", "ca.pem"}}).ok());
  EXPECT_TRUE(Read({{"PELTON_TLS_CA", ""}, {"PELTON_INSECURE", "1"}}).ok());
}

}  // namespace
}  // namespace pelton
