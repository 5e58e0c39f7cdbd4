// Trainers of a world, their daemons, and what goes wrong between them.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backend/backend.h"
#include "backend/link/daemon_questions.h"
#include "backend/link/link_client.h"
#include "backend/link/link_communicator.h"
#include "backend/link/link_record.h"
#include "backend/link/link_server.h"
#include "backend/link/link_socket.h"
#include "backend/link/sight.h"
#include "backend/link/test_daemons.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/control/key_value.h"
#include "comm/graph/graph_sequence.h"
#include "comm/neighbors.h"
#include "comm/transport/shm/socket.h"
#include "core/actor/backoff.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/weight_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/link.pb.h"

namespace pelton {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(20); }

using Trainer = std::function<absl::Status(Backend& backend)>;

// Runs `body` as the trainer of each rank, each on a thread.
std::vector<absl::Status> RunTrainers(const TestDaemons& daemons, int count, const Trainer& body) {
  std::vector<absl::Status> results(count);
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < count; ++rank) {
    trainers.emplace_back([&, rank] {
      auto backend = Backend::Start(daemons.TrainerOptions(rank));
      results[rank] = backend.ok() ? body(**backend) : backend.status();
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  return results;
}

void ExpectAllOk(const std::vector<absl::Status>& results) {
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

absl::Status Reduce(Communicator& communicator, std::vector<float>& values) {
  const Tensor tensor{values.data(), values.size(), DType::kFloat32};
  ASSIGN_OR_RETURN(const Completion done, AllReduce(communicator, tensor, tensor, ReduceOp::kSum));
  return Await(communicator, done, Soon());
}

absl::Status SumOnce(Backend& backend) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                   backend.Open(Group::World(backend.world_size())));
  std::vector<float> values(1000, 1.0f + static_cast<float>(backend.rank().value()));
  RETURN_IF_ERROR(Reduce(*communicator, values));
  const auto size = static_cast<float>(backend.world_size().value());
  if (values[999] == size * (size + 1) / 2) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("sum is ", values[999]));
}

TEST(LinkTest, TrainersReduceThroughTheirDaemons) {
  TestDaemons daemons(3);
  ExpectAllOk(RunTrainers(daemons, 3, [](Backend& backend) -> absl::Status {
    if (backend.host_ranks().size() != 3) return absl::InternalError("the host is not known");
    RETURN_IF_ERROR(SumOnce(backend));
    return backend.Stop(Soon());
  }));
}

// Where the ranks have the cores to themselves a last thread may spin that may not where each has a
// trainer beside it.
TEST(LinkTest, ADaemonCountsTrainersAmongThoseThatShareItsCores) {
  BackendOptions options;
  options.token = "a-token-of-sixteen-bytes-or-more";
  options.coordinator_address = "127.0.0.1:0";
  options.serves_coordinator = true;
  auto backend = Backend::Start(options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const bool has_cores = SpinningAllowed();  // else nobody spins, whoever is counted
  std::list<RuntimeThread> threads;
  while (SpinningAllowed()) threads.emplace_back();
  if (has_cores) threads.pop_back();
  ASSERT_EQ(SpinningAllowed(), has_cores);
  char folder[] = "/tmp/pelton-link-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = absl::StrCat(folder, "/0");
  {
    auto server = LinkServer::Start(backend->get(), path, *LinkServer::Listen(path));
    EXPECT_FALSE(SpinningAllowed());
    SetProcessesOnHost(1);
    EXPECT_EQ(SpinningAllowed(), has_cores) << "threads of the server's own were counted";
  }
  rmdir(folder);
}

// How often this process, which all trainers and daemons are threads of, has the region mapped.
int MappingsOf(const Region& region) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) {
    count += absl::StrContains(line, absl::StrCat("memfd:pelton-", region.name(), " ")) ? 1 : 0;
  }
  return count;
}

// Without that they copy: a trainer's memory counts as private where only its own daemon maps it.
absl::Status AwaitPeers(const Region& region) {
  const absl::Time patience = Soon();
  while (MappingsOf(region) < 3) {
    if (Clock::Real().Now() > patience) {
      return absl::InternalError("the region is mapped by its trainer and its daemon, no peer");
    }
    std::this_thread::yield();
  }
  return absl::OkStatus();
}

// Receives of any sender in turns, as two tags of torch.distributed have them.
absl::Status ReceiveBoth(Communicator& communicator) {
  std::map<int32_t, float> values = {{7, 0}, {9, 0}};
  std::map<int32_t, Completion> receives;
  const absl::Time patience = Soon();
  while (receives.size() < values.size()) {
    if (Clock::Real().Now() > patience) return absl::DeadlineExceededError("a sender is not found");
    for (auto& [tag, value] : values) {
      communicator.Progress();
      if (receives.contains(tag)) continue;
      ASSIGN_OR_RETURN(const std::optional<Rank> sender, communicator.FindSender(tag));
      if (!sender.has_value()) continue;
      ASSIGN_OR_RETURN(receives[tag],
                       Recv(communicator, {&value, 1, DType::kFloat32}, *sender, tag));
    }
  }
  for (auto& [tag, receive] : receives) RETURN_IF_ERROR(Await(communicator, receive, Soon()));
  if (values[7] == 70 && values[9] == 90) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("received ", values[7], " and ", values[9]));
}

TEST(LinkTest, SendersOfTwoTagsAreLookedForInTurns) {
  TestDaemons daemons(2);
  ExpectAllOk(RunTrainers(daemons, 2, [](Backend& backend) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend.Open(Group::World(backend.world_size())));
    if (backend.rank() == Rank(0)) {
      RETURN_IF_ERROR(ReceiveBoth(*communicator));
    } else {
      float values[] = {90, 70};
      for (int i : {0, 1}) {
        ASSIGN_OR_RETURN(
            const Completion sent,
            Send(*communicator, {&values[i], 1, DType::kFloat32}, Rank(0), i == 0 ? 9 : 7));
        RETURN_IF_ERROR(Await(*communicator, sent, Soon()));
      }
    }
    communicator.reset();
    return backend.Stop(Soon());
  }));
}

TEST(LinkTest, NeighboursAverageAndSharedMemoryIsUsedWhereItLies) {
  TestDaemons daemons(2);
  ExpectAllOk(RunTrainers(daemons, 2, [](Backend& backend) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                     Region::Create(1 << 20, absl::StrCat("of-rank-", backend.rank().value())));
    backend.Share(*region);
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend.Open(Group::World(backend.world_size())));
    auto* const values = reinterpret_cast<int32_t*>(region->data());
    const Tensor tensor{values, 1 << 18, DType::kInt32};
    values[100000] = 1 + backend.rank().value();
    ASSIGN_OR_RETURN(const Completion summed,
                     AllReduce(*communicator, tensor, tensor, ReduceOp::kSum));
    RETURN_IF_ERROR(Await(*communicator, summed, Soon()));
    if (values[100000] != 3) return absl::InternalError(absl::StrCat(values[100000]));
    RETURN_IF_ERROR(AwaitPeers(*region));
    ASSIGN_OR_RETURN(const auto ring, MakeGraphs("ring", WorldSize(2), {{"sides", "right"}}));
    ASSIGN_OR_RETURN(const auto table, WeightTable::Create(ring->At(0).Of(backend.rank())));
    float mine = static_cast<float>(backend.rank().value());
    const Tensor one{&mine, 1, DType::kFloat32};
    ASSIGN_OR_RETURN(const Completion averaged, NeighborAllReduce(*communicator, one, one, *table));
    RETURN_IF_ERROR(Await(*communicator, averaged, Soon()));
    communicator.reset();
    RETURN_IF_ERROR(backend.Stop(Soon()));
    return mine == 0.5f ? absl::OkStatus() : absl::InternalError(absl::StrCat(mine));
  }));
}

TEST(LinkTest, TheStoreIsOneForAllTrainersAndItsErrorsNameTheirKeys) {
  TestDaemons daemons(2);
  ExpectAllOk(RunTrainers(daemons, 2, [](Backend& backend) -> absl::Status {
    KeyValueStore store(&backend.control());
    if (backend.rank() == Rank(0)) {
      RETURN_IF_ERROR(store.Set("large", std::string(3 << 20, 'v'), Soon()));
    }
    ASSIGN_OR_RETURN(const std::string value, store.Get("large", Soon()));
    if (value.size() != 3 << 20)
      return absl::InternalError("the value is not the one that was set");
    const absl::Status late =
        store.Get("never", Clock::Real().Now() + absl::Milliseconds(50)).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("never"));
    EXPECT_FALSE(absl::StrContains(late.message(), "trainers ")) << late;
    return Barrier(backend.control(), "end", Soon());
  }));
}

TEST(LinkTest, TrainersThatComeBackFindNothingOfTheirPredecessors) {
  TestDaemons daemons(2);
  for (int round = 1; round <= 3; ++round) {
    ExpectAllOk(RunTrainers(daemons, 2, [&](Backend& backend) -> absl::Status {
      KeyValueStore store(&backend.control());
      if (backend.rank() == Rank(0)) {
        ASSIGN_OR_RETURN(const int64_t sum, store.Add("count", 1, Soon()));
        if (sum != 1) return absl::InternalError(absl::StrCat("count is ", sum));
      }
      RETURN_IF_ERROR(SumOnce(backend));
      return backend.Stop(Soon());
    }));
    EXPECT_EQ(daemons.server(0).Status().attachments(), round);
  }
}

// The trainer's end is that of its link: nobody says goodbye.
TEST(LinkTest, ATrainersDeathIsToldToTheOthersAndTheDaemonsLiveOn) {
  TestDaemons daemons(2);
  const LinkPlace place{daemons.PathOf(1), "default", Rank(1), WorldSize(2)};
  absl::Status survivor;
  std::thread other([&] {
    auto backend = Backend::Start(daemons.TrainerOptions(0));
    ASSERT_TRUE(backend.ok()) << backend.status();
    survivor = SumOnce(**backend);
  });
  {
    // A connection that attaches, and vanishes without a word.
    auto connected = LinkSocket::Connect(place.path, Soon());
    ASSERT_TRUE(connected.ok()) << connected.status();
    LinkSocket socket(*std::move(connected));
    proto::LinkHello hello;
    hello.set_version(kLinkProtocolVersion);
    hello.set_purpose(proto::LinkHello::ATTACH);
    hello.set_job("default");
    hello.set_rank(1);
    hello.set_world_size(2);
    hello.set_pid(4711);
    hello.set_timeout_us(20'000'000);
    ASSERT_TRUE(socket.Send(hello, Soon()).ok());
    proto::LinkWelcome welcome;
    ASSERT_TRUE(socket.Receive(welcome, Soon()).ok());
    EXPECT_EQ(welcome.code(), 0) << welcome.message();
  }
  other.join();
  EXPECT_TRUE(absl::IsUnavailable(survivor)) << survivor;
  EXPECT_THAT(std::string(survivor.message()), HasSubstr("rank 1's trainer (pid 4711) is gone"));
  ExpectAllOk(RunTrainers(daemons, 2, [](Backend& backend) -> absl::Status {
    RETURN_IF_ERROR(SumOnce(backend));
    return backend.Stop(Soon());
  }));
}

// As a script that ends early: the others wait for an operation that it does not begin.
absl::Status ReduceWithOneThatLeaves(Backend& backend) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                   backend.Open(Group::World(backend.world_size())));
  std::vector<float> values(1000, 1);
  RETURN_IF_ERROR(Reduce(*communicator, values));
  if (backend.rank() == Rank(1)) return absl::OkStatus();
  const absl::Time start = Clock::Real().Now();
  const absl::Status told = Reduce(*communicator, values);
  EXPECT_LT(Clock::Real().Now() - start, absl::Seconds(15)) << "its deadline is after 20 s";
  EXPECT_TRUE(absl::IsUnavailable(told)) << told;
  EXPECT_THAT(std::string(told.message()),
              HasSubstr(absl::StrCat("rank 1 (pid ", getpid(), ") has left: its script ended")));
  return absl::OkStatus();
}

TEST(LinkTest, ATrainerThatLeavesIsNamedToThoseWhoNeedIt) {
  TestDaemons daemons(3);
  ExpectAllOk(RunTrainers(daemons, 3, ReduceWithOneThatLeaves));
  ExpectAllOk(RunTrainers(daemons, 3, SumOnce));
}

TEST(LinkTest, GroupsWithoutTheTrainerThatHasLeftGoOn) {
  TestDaemons daemons(3);
  ExpectAllOk(RunTrainers(daemons, 3, [](Backend& backend) -> absl::Status {
    RETURN_IF_ERROR(SumOnce(backend));
    if (backend.rank() == Rank(1)) return absl::OkStatus();
    const Group world = Group::World(backend.world_size());
    const absl::Time patience = Soon();
    while (backend.WhyNotWith(world).ok() && Clock::Real().Now() < patience) {
      std::this_thread::yield();
    }
    EXPECT_THAT(std::string(backend.WhyNotWith(world).message()), HasSubstr("rank 1 (pid "));
    EXPECT_TRUE(backend.failure().ok()) << backend.failure();
    Group others;
    others.members = {Rank(0), Rank(2)};
    EXPECT_TRUE(backend.WhyNotWith(others).ok());
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, backend.Open(others));
    std::vector<float> values(1000, 1);
    RETURN_IF_ERROR(Reduce(*communicator, values));
    return values[7] == 2 ? absl::OkStatus() : absl::InternalError(absl::StrCat(values[7]));
  }));
}

TEST(LinkTest, ADaemonsEndEndsItsTrainersWaitByName) {
  TestDaemons daemons(2);
  std::thread ending;
  const auto results = RunTrainers(daemons, 2, [&](Backend& backend) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     backend.Open(Group::World(backend.world_size())));
    if (backend.rank() == Rank(1)) {
      ending = std::thread([&] { daemons.End(1); });
      // Rank 0 does not come.
      std::vector<float> values(10, 1);
      const absl::Status status = Reduce(*communicator, values);
      return status;
    }
    const absl::Status told = Barrier(backend.control(), "never", Soon());
    return told;
  });
  ending.join();
  for (const absl::Status& status : results) EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(results[1].message()),
              HasSubstr(absl::StrCat("pelton-daemon of rank 1 (pid ", getpid(), ") is gone")));
}

struct Refusal {
  const char* what;
  std::function<void(proto::LinkHello&)> change;
  absl::StatusCode code;
  const char* text;
};

TEST(LinkTest, AStrangerIsRefusedWithItsReasonAndTheDaemonLivesOn) {
  TestDaemons daemons(1);
  const std::vector<Refusal> refusals = {
      {"another version", [](auto& hello) { hello.set_version(99); },
       absl::StatusCode::kFailedPrecondition, "version: the trainer speaks 99"},
      {"another job", [](auto& hello) { hello.set_job("other"); },
       absl::StatusCode::kFailedPrecondition, "job: the trainer's is 'other'"},
      {"another rank", [](auto& hello) { hello.set_rank(7); },
       absl::StatusCode::kFailedPrecondition, "rank: the trainer's is '7'"},
      {"another world", [](auto& hello) { hello.set_world_size(5); },
       absl::StatusCode::kFailedPrecondition, "world size: the trainer's is '5'"},
      {"no purpose", [](auto& hello) { hello.clear_purpose(); }, absl::StatusCode::kInvalidArgument,
       "purpose: 0"},
      {"no attachment", [](auto& hello) { hello.set_purpose(proto::LinkHello::CALL); },
       absl::StatusCode::kFailedPrecondition, "attachment 0"},
      {"a communicator of a stranger",
       [](auto& hello) { hello.set_purpose(proto::LinkHello::COMMUNICATOR); },
       absl::StatusCode::kFailedPrecondition, "attachment 0"},
  };
  for (const Refusal& refusal : refusals) {
    LinkSocket socket(*LinkSocket::Connect(daemons.PathOf(0), Soon()));
    proto::LinkHello hello;
    hello.set_version(kLinkProtocolVersion);
    hello.set_purpose(proto::LinkHello::ATTACH);
    hello.set_job("default");
    hello.set_world_size(1);
    refusal.change(hello);
    ASSERT_TRUE(socket.Send(hello, Soon()).ok());
    proto::LinkWelcome welcome;
    ASSERT_TRUE(socket.Receive(welcome, Soon()).ok()) << refusal.what;
    EXPECT_EQ(welcome.code(), static_cast<int>(refusal.code)) << refusal.what;
    EXPECT_THAT(welcome.message(), HasSubstr(refusal.text)) << refusal.what;
  }
  ExpectAllOk(RunTrainers(daemons, 1, SumOnce));
}

TEST(LinkTest, GarbageAndAMessageThatStopsInTheMiddleAreRefused) {
  TestDaemons daemons(1);
  const std::string half = std::string("\x01\x4b\x4c\x50", 4) +
                           std::string("\x64\0\0\0\0\0\0\0", 8) + std::string(4, '\0') +
                           "ten bytes.";
  for (const std::string& bytes : {std::string(100, 'g'), std::string("\0", 1), half}) {
    LinkSocket socket(*LinkSocket::Connect(daemons.PathOf(0), Soon()));
    ASSERT_GT(write(socket.descriptor(), bytes.data(), bytes.size()), 0);
    if (bytes == half) socket.Shutdown();
    proto::LinkWelcome welcome;
    if (socket.Receive(welcome, Soon()).ok()) {
      EXPECT_NE(welcome.code(), 0);
    }
  }
  ExpectAllOk(RunTrainers(daemons, 1, SumOnce));
}

TEST(LinkTest, ASecondTrainerIsRefusedByTheFirstOnesPid) {
  TestDaemons daemons(1);
  auto first = Backend::Start(daemons.TrainerOptions(0));
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = Backend::Start(daemons.TrainerOptions(0)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(absl::StrCat("pid ", getpid())));
  EXPECT_TRUE(SumOnce(**first).ok());
}

TEST(LinkTest, ASecondDaemonAtTheSameSocketIsRefused) {
  TestDaemons daemons(1);
  const absl::Status refused = LinkServer::Listen(daemons.PathOf(0)).status();
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
}

TEST(LinkTest, NobodyListeningSaysWhere) {
  BackendOptions options;
  options.coordinator_address = "unix:/nowhere/socket";
  const absl::Status status = Backend::Start(options).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/socket"));
}

// Threads: one. Owns: nothing.
class StreamOfAGpu final : public Stream {
 public:
  DeviceKind device() const override { return DeviceKind::kCuda; }
};

TEST(LinkTest, WhatADaemonWorksOnIsTheHostsMemory) {
  TestDaemons daemons(1);
  auto backend = Backend::Start(daemons.TrainerOptions(0));
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto communicator = (*backend)->Open(Group::World(WorldSize(1)));
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  Operation barrier;
  barrier.kind = OperationKind::kBarrier;
  StreamOfAGpu stream;
  const absl::Status refused = (*communicator)->Launch(barrier, stream).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("open a communicator for the device"));
}

TEST(LinkTest, TheStatusTellsOfTrainerRoundAndCommunicators) {
  TestDaemons daemons(1);
  EXPECT_EQ(daemons.server(0).Status().trainer_pid(), 0);
  auto backend = Backend::Start(daemons.TrainerOptions(0));
  ASSERT_TRUE(backend.ok()) << backend.status();
  auto communicator = (*backend)->Open(Group::World(WorldSize(1)));
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  (*backend)->control().SetRound(Round(12));
  // What follows on the same connection would be seen after it; a call goes over another one.
  const absl::Time patience = Soon();
  while (daemons.server(0).Status().round() != 12 && Clock::Real().Now() < patience) {
    std::this_thread::yield();
  }
  const proto::LinkStatus status = daemons.server(0).Status();
  EXPECT_EQ(status.trainer_pid(), getpid());
  EXPECT_EQ(status.round(), 12u);
  EXPECT_EQ(status.communicators(), 1u);
  EXPECT_EQ(status.failure(), "");
}

TEST(LinkTest, ToolsAskForTheStatusAndForTheEnd) {
  TestDaemons daemons(1);
  const auto status = AskStatus(daemons.PathOf(0), Soon());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_THAT(TextOf(*status),
              HasSubstr(absl::StrCat("rank 0 of 1 daemon ", getpid(), " trainer none")));
  EXPECT_FALSE(daemons.server(0).stop_requested());
  EXPECT_TRUE(AskToStop(daemons.PathOf(0), Soon()).ok());
  EXPECT_TRUE(daemons.server(0).stop_requested());
  EXPECT_TRUE(absl::IsNotFound(AskStatus("/nowhere/socket", Soon()).status()));
}

// Welcomes the connections of a trainer and its communicator, and says nothing more.
// Threads: one of its own. Owns: its socket.
class SilentDaemon {
 public:
  explicit SilentDaemon(const std::string& path) : listener_(*LinkServer::Listen(path)) {
    thread_ = std::thread([this] { Serve(); });
  }
  ~SilentDaemon() { thread_.join(); }

 private:
  void Serve() {
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<Descriptor> accepted = shm::Accept(listener_.get(), Soon());
      if (!accepted.ok()) return;
      sockets_.push_back(std::make_unique<LinkSocket>(*std::move(accepted)));
      proto::LinkHello hello;
      (void)sockets_.back()->Receive(hello, Soon());
      proto::LinkWelcome welcome;
      welcome.set_daemon_pid(4711);
      welcome.set_attachment(1);
      (void)sockets_.back()->Send(welcome, Soon());
    }
  }

  Descriptor listener_;
  std::vector<std::unique_ptr<LinkSocket>> sockets_;
  std::thread thread_;
};

TEST(LinkTest, ADaemonThatStandsStillIsNamedAndNotTheRanks) {
  const TestDaemons folder(1);
  for (const bool is_shared : {false, true}) {
    const std::string path = absl::StrCat(folder.PathOf(0), is_shared ? "s" : "p");
    {
      SilentDaemon daemon(path);
      auto attached = LinkClient::Attach({path, "default", Rank(0), WorldSize(1)}, Soon());
      ASSERT_TRUE(attached.ok()) << attached.status();
      const std::shared_ptr<LinkClient> client = *std::move(attached);
      const auto transport = MakeLinkTransport(client);
      auto communicator = transport->Open(CommunicatorId(1), Group::World(WorldSize(1)), Soon());
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      auto region = Region::Create(4096, "shared");
      ASSERT_TRUE(region.ok()) << region.status();
      if (is_shared) {
        EXPECT_TRUE((*communicator)->Register(**region).ok());
      }
      const Tensor tensor{(*region)->data(), 10, DType::kFloat32};
      const auto done = AllReduce(**communicator, tensor, tensor, ReduceOp::kSum);
      ASSERT_TRUE(done.ok()) << done.status();
      const absl::Time deadline = Clock::Real().Now() + absl::Milliseconds(100);
      const absl::Status named = Await(**communicator, *done, deadline);
      EXPECT_LT(Clock::Real().Now() - deadline, absl::Seconds(8)) << "not limits::kStopTimeout";
      EXPECT_TRUE(absl::IsDeadlineExceeded(named)) << named;
      EXPECT_THAT(
          std::string(named.message()),
          ContainsRegex(R"(rank 0: the pelton-daemon of rank 0 \(pid 4711\) has not answered for )"
                        R"([0-9.]+ s)"));
      EXPECT_THAT(std::string(named.message()), Not(HasSubstr("every rank has arrived")));
    }
    unlink(path.c_str());
  }
}

// What a trainer with the right attachment could send on a communicator's connection.
TEST(LinkTest, RecordsThatAreNoneEndTheirCommunicatorOnly) {
  TestDaemons daemons(1);
  const LinkPlace place{daemons.PathOf(0), "default", Rank(0), WorldSize(1)};
  auto client = LinkClient::Attach(place, Soon());
  ASSERT_TRUE(client.ok()) << client.status();
  LinkRecord outside;
  outside.kind = LinkRecord::kLaunch;
  outside.ticket = 1;
  outside.operation.kind = OperationKind::kAllReduce;
  outside.operation.count = 1;
  outside.operation.source_region = RegionId(5);
  LinkRecord answer_kind;
  answer_kind.kind = LinkRecord::kDone;
  LinkRecord bare;
  bare.kind = LinkRecord::kRegister;
  for (const std::string& bytes :
       {EncodeRecord(outside), EncodeRecord(answer_kind), EncodeRecord(bare), std::string("?")}) {
    proto::LinkHello hello;
    hello.set_purpose(proto::LinkHello::COMMUNICATOR);
    hello.add_members(0);
    proto::LinkWelcome welcome;
    auto socket = (*client)->Connect(hello, &welcome, Soon());
    ASSERT_TRUE(socket.ok()) << socket.status();
    ASSERT_TRUE((*socket)->Send(bytes, {}, Soon()).ok());
    const auto message = (*socket)->Receive(Soon());
    ASSERT_TRUE(message.ok()) << message.status();
    const auto answer = DecodeRecord(message->payload);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(absl::IsInvalidArgument(answer->status())) << answer->status();
  }
  (*client)->Leave(Soon());
  ExpectAllOk(RunTrainers(daemons, 1, SumOnce));
}

}  // namespace
}  // namespace pelton
