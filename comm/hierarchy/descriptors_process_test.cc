// How many descriptors a process needs, with ranks as processes on several "hosts" of this one.
//   bazel run //comm/hierarchy:descriptors_process_test -- --ranks=256
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/hierarchy/hierarchical_transport.h"
#include "comm/transport/open_descriptors.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::hierarchy {
namespace {

constexpr int kHosts = 4;
constexpr uint32_t kGroups = 10;
// Standard streams, what the test's framework has open, what each transport has; then two for each
// group, by which a thread that waits between hosts is woken in its users' and its own operations.
constexpr size_t kFixed = 12 + 2 * kGroups;

int rank_count = 24;

// The values of the ranks of one host, by those of all. Threads: one. Owns: nothing.
class HostBootstrap final : public Bootstrap {
 public:
  HostBootstrap(Bootstrap& all, std::vector<Rank> ranks) : all_(all), ranks_(std::move(ranks)) {}
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) override {
    ASSIGN_OR_RETURN(const std::vector<std::string> all, all_.AllGather(key, value, deadline));
    std::vector<std::string> values;
    for (const Rank rank : ranks_) values.push_back(all[static_cast<size_t>(rank.value())]);
    return values;
  }

 private:
  Bootstrap& all_;
  const std::vector<Rank> ranks_;
};

int32_t HostOf(int32_t rank) { return rank / (rank_count / kHosts); }

absl::StatusOr<std::unique_ptr<HostsTransport>> Connect(const TransportOptions& options) {
  HierarchyOptions hierarchy;
  hierarchy.rank = options.rank;
  TransportOptions inside = options;
  TransportOptions between = options;
  for (int32_t rank = 0; rank < rank_count; ++rank) {
    hierarchy.host_of.push_back(HostOf(rank));
    if (HostOf(rank) == HostOf(options.rank.value())) between.near.emplace_back(rank);
  }
  HostBootstrap bootstrap(*options.bootstrap, between.near);
  inside.rank = Rank(options.rank.value() % (rank_count / kHosts));
  inside.world_size = WorldSize(rank_count / kHosts);
  inside.job_token = absl::StrCat("host ", HostOf(options.rank.value()));
  inside.bootstrap = &bootstrap;
  inside.names = between.near;
  ASSIGN_OR_RETURN(hierarchy.inside, MakeShmTransport(inside));
  ASSIGN_OR_RETURN(hierarchy.between, MakeTcpTransport(between));
  return MakeHierarchicalTransport(std::move(hierarchy));
}

absl::Status Sum(Communicator& communicator) {
  std::vector<float> values(64, 1);
  const Tensor tensor{values.data(), values.size(), DType::kFloat32};
  ASSIGN_OR_RETURN(const Completion sum, AllReduce(communicator, tensor, tensor, ReduceOp::kSum));
  RETURN_IF_ERROR(Await(communicator, sum, absl::Now() + absl::Minutes(5)));
  if (values[0] == static_cast<float>(rank_count)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a sum of ", values[0]));
}

// Opens groups and uses each; the number of descriptors after the first and after the last.
absl::StatusOr<std::vector<size_t>> CountDescriptors(const TransportOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<HostsTransport> transport, Connect(options));
  std::vector<std::unique_ptr<Communicator>> groups;
  std::vector<size_t> counts;
  for (uint32_t id = 1; id <= kGroups; ++id) {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened,
                     transport->Open(CommunicatorId(id), Group::World(options.world_size),
                                     absl::Now() + absl::Minutes(5)));
    RETURN_IF_ERROR(Sum(*opened));
    groups.push_back(std::move(opened));
    counts.push_back(OpenDescriptors());
  }
  return std::vector<size_t>{counts.front(), counts.back()};
}

TEST(DescriptorsTest, TenGroupsNeedOneConnectionForEachPairOfRanks) {
  shm::Processes processes(rank_count, [](const TransportOptions& options) -> std::string {
    const auto counts = CountDescriptors(options);
    if (!counts.ok()) return counts.status().ToString();
    const auto peers = static_cast<size_t>(rank_count - 1);
    if (options.rank == Rank(rank_count / 2)) {
      std::cout << rank_count << " ranks on " << kHosts << " hosts: " << (*counts)[0]
                << " descriptors with one group, " << (*counts)[1] << " with " << kGroups << "\n"
                << std::flush;
    }
    if ((*counts)[1] <= peers + kFixed) return "";
    return absl::StrCat((*counts)[1], " descriptors for ", peers, " peers");
  });
  EXPECT_THAT(processes.JoinAll(), testing::IsEmpty());
}

}  // namespace
}  // namespace pelton::hierarchy

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view value = argv[i];
    if (absl::ConsumePrefix(&value, "--ranks=") &&
        !absl::SimpleAtoi(value, &pelton::hierarchy::rank_count)) {
      std::cerr << "--ranks: '" << value << "' is no number\n";
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
