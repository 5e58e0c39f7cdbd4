// What becomes of the hosts' communicator when that of their GPUs is closed.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/transport/nccl/gpu_world.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "comm/transport/operation_check.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"

namespace pelton {
namespace {

absl::Time FarDeadline() { return Clock::Real().Now() + absl::Seconds(60); }

// A host's communicator under which peers are still at the memory of what is in flight until it
// ends. Threads: as Communicator. Owns: the wrapped one.
class LateHost final : public ForwardingCommunicator {
 public:
  LateHost(std::unique_ptr<Communicator> wrapped, std::vector<std::string>* seen)
      : ForwardingCommunicator(std::move(wrapped)), seen_(seen) {}
  ~LateHost() override {
    seen_->push_back("closed");
    for (const Flight& flight : in_flight_) std::memset(flight.memory.target, 0, 1);
  }
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    std::erase_if(in_flight_, [this](const Flight& flight) { return Query(flight.launched).done; });
    auto launched = ForwardingCommunicator::Launch(operation, stream);
    const auto memory = ResolveOperation(operation, rank(), world_size());
    const bool is_gather = operation.kind == OperationKind::kAllGather;
    if (launched.ok() && memory.ok() && is_gather && !Query(*launched).done) {
      in_flight_.push_back({*launched, *memory});
    }
    return launched;
  }
  void Abort(const absl::Status& reason) override {
    seen_->push_back("aborted");
    ForwardingCommunicator::Abort(reason);
  }

 private:
  struct Flight {
    Completion launched;
    OperationMemory memory;
  };
  std::vector<std::string>* const seen_;
  std::vector<Flight> in_flight_;
};

// Threads: as Transport. Owns: the wrapped one.
class LateHosts final : public Transport {
 public:
  LateHosts(std::unique_ptr<Transport> wrapped, std::vector<std::string>* seen)
      : wrapped_(std::move(wrapped)), seen_(seen) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    auto opened = wrapped_->Open(id, group, deadline);
    if (!opened.ok()) return opened;
    return std::make_unique<LateHost>(*std::move(opened), seen_);
  }
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> wrapped_;
  std::vector<std::string>* const seen_;
};

// The posts of what is in flight lie in the communicator, and hosts write there.
TEST(NcclClosingTest, TheHostEndsBeforeThePostsOfWhatIsInFlight) {
  NcclOptions options;
  options.nccl_path = options.cudart_path = stand_in::LibraryPath();
  GpuWorld world(WorldSize(2), options);
  std::vector<std::string> seen;
  LateHosts hosts(world.hosts().MakeTransport(Rank(0)), &seen);
  options.device = 0;
  auto mine =
      MakeNcclTransport({Rank(0), WorldSize(2), "", nullptr, FarDeadline(), &hosts}, options);
  ASSERT_TRUE(mine.ok()) << mine.status();
  std::atomic<bool> has_closed = false;
  world.RunTransports([&](Transport& transport, Rank rank) {
    Transport& used = rank == Rank(0) ? **mine : transport;
    auto opened = used.Open(CommunicatorId(1), Group::World(WorldSize(2)), FarDeadline());
    ASSERT_TRUE(opened.ok()) << opened.status();
    if (rank == Rank(0)) {
      float value = 1;
      const Tensor tensor{&value, 1, DType::kFloat32};
      // And nobody waits for it.
      ASSERT_TRUE(AllReduce(**opened, tensor, tensor, ReduceOp::kSum).ok());
      opened->reset();
      has_closed = true;
    }
    while (!has_closed) std::this_thread::yield();
  });
  EXPECT_THAT(seen, testing::ElementsAre("aborted", "closed"));
}

// Models are dropped when a rank's garbage collector finds them: one that waited in NCCL for its
// peers to close theirs would keep them from coming to that.
TEST(NcclClosingTest, NoRankWaitsForItsPeersToClose) {
  NcclOptions options;
  options.nccl_path = options.cudart_path = stand_in::LibraryPath();
  {
    GpuWorld world(WorldSize(2), options);
    std::atomic<bool> has_closed[2] = {false, false};
    world.RunTransports([&](Transport& transport, Rank rank) {
      std::vector<std::unique_ptr<Communicator>> opened;
      for (int64_t id : {1, 2}) {
        auto communicator =
            transport.Open(CommunicatorId(id), Group::World(WorldSize(2)), FarDeadline());
        ASSERT_TRUE(communicator.ok()) << communicator.status();
        float value = 1;
        const Tensor tensor{&value, 1, DType::kFloat32};
        const auto sum = AllReduce(**communicator, tensor, tensor, ReduceOp::kSum);
        ASSERT_TRUE(sum.ok()) << sum.status();
        ASSERT_EQ(Await(**communicator, *sum, FarDeadline()), absl::OkStatus());
        opened.push_back(*std::move(communicator));
      }
      const auto own = static_cast<size_t>(rank.value());
      opened[own].reset();
      has_closed[own] = true;
      const absl::Time give_up = Clock::Real().Now() + absl::Seconds(20);
      while (!has_closed[1 - own] && Clock::Real().Now() < give_up) std::this_thread::yield();
      EXPECT_TRUE(has_closed[1 - own]) << "rank " << rank << "'s peer waits for it";
    });
  }
  EXPECT_EQ(stand_in::StandIn::Get().open_count(), 0);
}

}  // namespace
}  // namespace pelton
