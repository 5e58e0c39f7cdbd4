// The transports' conformance suite over several layouts of hosts.
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "comm/hierarchy/hierarchical_transport.h"
#include "comm/transport/conformance_test.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_transports.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/check.h"

namespace pelton {
namespace {

// Host numbers of `world_size` ranks whose hosts have these sizes, over and over.
template <int32_t... kSizes>
std::vector<int32_t> HostsOf(int32_t world_size) {
  const std::vector<int32_t> sizes = {kSizes...};
  std::vector<int32_t> host_of;
  for (int32_t host = 0; static_cast<int32_t>(host_of.size()) < world_size; ++host) {
    host_of.insert(host_of.end(), sizes[host % sizes.size()], host);
  }
  host_of.resize(world_size);
  return host_of;
}

// Simulated wires between the hosts. Threads: one. Owns: the fabrics.
class HostsFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    const std::vector<int32_t> host_of = HostOf(world_size.value());
    between_ = std::make_unique<SimFabric>(world_size);
    std::vector<std::unique_ptr<Transport>> inside = MakeInside(host_of);
    std::vector<std::unique_ptr<Transport>> transports;
    for (int32_t rank = 0; rank < world_size.value(); ++rank) {
      HierarchyOptions options;
      options.rank = Rank(rank);
      options.host_of = host_of;
      options.inside = std::move(inside[rank]);
      options.between = between_->MakeTransport(Rank(rank));
      options.staged_kinds = StagedKinds();
      transports.push_back(MakeHierarchicalTransport(std::move(options)));
    }
    return transports;
  }
  TransportPromises promises() const override {
    TransportPromises promises;
    promises.reduces_like_the_reference = false;
    return promises;
  }

 protected:
  virtual std::vector<int32_t> HostOf(int32_t world_size) const = 0;
  virtual KindSet StagedKinds() const { return hierarchy::kStagedKinds; }
  // By rank.
  virtual std::vector<std::unique_ptr<Transport>> MakeInside(
      const std::vector<int32_t>& host_of) = 0;

 private:
  std::unique_ptr<SimFabric> between_;
};

// Threads: one. Owns: a fabric per host.
template <int32_t... kSizes>
class SimHosts : public HostsFixture {
 protected:
  std::vector<int32_t> HostOf(int32_t size) const override { return HostsOf<kSizes...>(size); }
  std::vector<std::unique_ptr<Transport>> MakeInside(const std::vector<int32_t>& host_of) override {
    std::vector<std::unique_ptr<Transport>> inside;
    for (size_t rank = 0; rank < host_of.size();) {
      const auto end = std::count(host_of.begin(), host_of.end(), host_of[rank]);
      hosts_.push_back(std::make_unique<SimFabric>(WorldSize(static_cast<int32_t>(end))));
      for (std::unique_ptr<Transport>& transport : hosts_.back()->MakeTransports()) {
        inside.push_back(std::move(transport));
      }
      rank += static_cast<size_t>(end);
    }
    return inside;
  }

 private:
  std::vector<std::unique_ptr<SimFabric>> hosts_;
};

// Every collective has a flat recipe, as one has that there are no stages for.
template <int32_t... kSizes>
class FlatHosts final : public SimHosts<kSizes...> {
 protected:
  KindSet StagedKinds() const override { return {}; }
};

// Real shared memory inside the hosts. Threads: one. Owns: nothing more.
template <int32_t... kSizes>
class ShmHosts final : public HostsFixture {
 protected:
  std::vector<int32_t> HostOf(int32_t size) const override { return HostsOf<kSizes...>(size); }
  std::vector<std::unique_ptr<Transport>> MakeInside(const std::vector<int32_t>& host_of) override {
    std::vector<std::unique_ptr<shm::MeetingPlace>> places;
    std::vector<std::unique_ptr<Transport>> inside(host_of.size());
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < host_of.size(); ++rank) {
      const auto begin = host_of.begin();
      const auto place = std::count(begin, begin + static_cast<ptrdiff_t>(rank), host_of[rank]);
      const auto size = static_cast<int>(std::count(begin, host_of.end(), host_of[rank]));
      if (place == 0) places.push_back(std::make_unique<shm::MeetingPlace>(size));
      ranks.emplace_back([&inside, &host_of, &meeting = *places.back(), rank, place, size] {
        shm::TestBootstrap bootstrap(meeting, static_cast<int>(place));
        TransportOptions options{Rank(static_cast<int32_t>(place)), WorldSize(size), "token",
                                 &bootstrap, absl::Now() + absl::Seconds(60)};
        for (size_t other = 0; other < host_of.size(); ++other) {
          if (host_of[other] == host_of[rank]) {
            options.names.emplace_back(static_cast<int32_t>(other));
          }
        }
        auto transport = MakeShmTransport(options);
        PELTON_CHECK(transport.ok()) << transport.status();
        inside[rank] = *std::move(transport);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return inside;
  }
};

#ifdef PELTON_HIERARCHY_OVER_SHM
INSTANTIATE_TEST_SUITE_P(ShmTwos, TransportConformanceTest,
                         testing::Values((&MakeTransportFixture<ShmHosts<2>>)));
INSTANTIATE_TEST_SUITE_P(ShmThreeAndOne, TransportConformanceTest,
                         testing::Values((&MakeTransportFixture<ShmHosts<3, 1>>)));
#else
INSTANTIATE_TEST_SUITE_P(Twos, TransportConformanceTest,
                         testing::Values((&MakeTransportFixture<SimHosts<2>>)));
INSTANTIATE_TEST_SUITE_P(ThreeAndOne, TransportConformanceTest,
                         testing::Values((&MakeTransportFixture<SimHosts<3, 1>>)));
INSTANTIATE_TEST_SUITE_P(FlatThreeAndOne, TransportConformanceTest,
                         testing::Values((&MakeTransportFixture<FlatHosts<3, 1>>)));
INSTANTIATE_TEST_SUITE_P(OneTwoOne, TransportConformanceTest,
                         testing::Values((&MakeTransportFixture<SimHosts<1, 2, 1>>)));
INSTANTIATE_TEST_SUITE_P(OneHost, TransportConformanceTest,
                         testing::Values((&MakeTransportFixture<SimHosts<24>>)));
#endif

}  // namespace
}  // namespace pelton
