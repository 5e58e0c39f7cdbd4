// Which trainers of a daemon have an heir, and what that gets.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/link/daemon_questions.h"
#include "backend/link/link_client.h"
#include "backend/link/link_record.h"
#include "backend/link/link_server.h"
#include "backend/link/link_socket.h"
#include "backend/link/linked_model.h"
#include "backend/link/test_daemons.h"
#include "backend/model.h"
#include "comm/control/key_value.h"
#include "comm/group.h"
#include "comm/transport/descriptor.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"
#include "core/round/model_rounds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/link.pb.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kGrace = absl::Seconds(60);
constexpr int32_t kPid = 4711;

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(20); }

// A trainer that is its connections: it dies with them, without a goodbye.
// Threads: one. Owns: the connections.
class BareTrainer {
 public:
  BareTrainer(const TestDaemons& daemons, int rank, int world_size)
      : path_(daemons.PathOf(rank)), rank_(rank), world_size_(world_size) {
    attached_ = Connect(proto::LinkHello::ATTACH);
    attachment_ = welcome_.attachment();
  }

  // For `purpose`, over all ranks; the answer is `welcome()`.
  std::unique_ptr<LinkSocket> Connect(proto::LinkHello::Purpose purpose) {
    absl::StatusOr<Descriptor> connected = LinkSocket::Connect(path_, Soon());
    PELTON_CHECK_OK(connected.status());
    auto socket = std::make_unique<LinkSocket>(*std::move(connected));
    proto::LinkHello hello;
    hello.set_version(kLinkProtocolVersion);
    hello.set_purpose(purpose);
    hello.set_job("default");
    hello.set_rank(rank_);
    hello.set_world_size(world_size_);
    hello.set_pid(kPid);
    hello.set_attachment(attachment_);
    hello.set_timeout_us(20'000'000);
    for (int member = 0; member < world_size_; ++member) hello.add_members(member);
    PELTON_CHECK_OK(socket->Send(hello, Soon()));
    PELTON_CHECK_OK(socket->Receive(welcome_, Soon()));
    return socket;
  }
  const proto::LinkWelcome& welcome() const { return welcome_; }

  // Blocks: until the daemon has heard it.
  void Tell(proto::LinkMark mark) {
    const std::unique_ptr<LinkSocket> socket = Connect(proto::LinkHello::CALL);
    proto::LinkCall call;
    call.set_mark(mark);
    PELTON_CHECK_OK(socket->Send(call, Soon()));
    proto::LinkReply reply;
    PELTON_CHECK_OK(socket->Receive(reply, Soon()));
  }

 private:
  const std::string path_;
  const int rank_;
  const int world_size_;
  proto::LinkWelcome welcome_;
  std::unique_ptr<LinkSocket> attached_;
  uint64_t attachment_ = 0;
};

// Whether `holds` does so before a test's patience ends.
template <typename Condition>
bool ComesTrue(Condition holds) {
  const absl::Time patience = Soon();
  while (!holds() && Clock::Real().Now() < patience) std::this_thread::yield();
  return holds();
}
bool StandsStill(Backend& backend) { return backend.absences().standstill().stands(); }

// Waits for what nobody sets, as rank 0. The result is what ended the wait.
std::string WhyAPeerEnds(const TestDaemons& daemons) {
  const absl::StatusOr<std::unique_ptr<Backend>> backend =
      Backend::Start(daemons.TrainerOptions(0));
  if (!backend.ok()) return backend.status().ToString();
  KeyValueStore store(&(*backend)->control());
  std::string why = store.Get("what nobody sets", Soon()).status().ToString();
  EXPECT_TRUE(ComesTrue([&] { return !StandsStill(**backend); }));
  return why;
}

// Once the daemon has seen its trainer's end.
proto::LinkStatus StatusAfterTheEnd(const LinkServer& server) {
  EXPECT_TRUE(ComesTrue([&] { return server.Status().trainer_pid() == 0; }));
  return server.Status();
}

// How an operation without memory has ended there.
absl::Status RunBarrier(LinkSocket& communicator, uint64_t ticket) {
  LinkRecord record;
  record.kind = LinkRecord::kLaunch;
  record.ticket = ticket;
  record.operation.kind = OperationKind::kBarrier;
  RETURN_IF_ERROR(communicator.Send(EncodeRecord(record), {}, Soon()));
  ASSIGN_OR_RETURN(const LinkSocket::Message message, communicator.Receive(Soon()));
  ASSIGN_OR_RETURN(const ParsedRecord answer, DecodeRecord(message.payload));
  return answer.status();
}

std::unique_ptr<Model> OneTensorModel(std::unique_ptr<LinkSocket> socket) {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(WorldSize(1));
  options.algorithm = "gradient_allreduce";
  options.timeout = absl::Seconds(20);
  return AttachModel(std::move(socket), {}, options, *MakeAlgorithm(options.algorithm, {}),
                     {{.name = "t", .count = 3}}, Soon())
      .value();
}

void RunRounds(Model& model, int count) {
  ModelRounds& rounds = model.rounds();
  for (int i = 0; i < count; ++i) {
    PELTON_CHECK_OK(rounds.MarkReady(SlotId(0)));
    PELTON_CHECK_OK(rounds.EndRound());
    PELTON_CHECK_OK(rounds.CloseRound(rounds.RoundDone(Soon()).Await(Soon())));
  }
}

// Its peers would wait for what it believes to have done with them.
TEST(HeirTest, ItsTrainingIsNotAnsweredWithItsFormersSetUp) {
  TestDaemons daemons(1, kGrace);
  {
    BareTrainer first(daemons, 0, 1);
    const auto communicator = first.Connect(proto::LinkHello::COMMUNICATOR);
    EXPECT_TRUE(RunBarrier(*communicator, 1).ok());
    EXPECT_TRUE(RunBarrier(*communicator, 2).ok());
    first.Tell(proto::SET_UP_IS_OVER);
    first.Tell(proto::SNAPSHOT_IS_KEPT);
  }
  EXPECT_TRUE(StatusAfterTheEnd(daemons.server(0)).awaits_heir());
  BareTrainer heir(daemons, 0, 1);
  EXPECT_TRUE(heir.welcome().is_heir());
  const auto communicator = heir.Connect(proto::LinkHello::COMMUNICATOR);
  EXPECT_TRUE(RunBarrier(*communicator, 1).ok());
  heir.Tell(proto::SET_UP_IS_OVER);
  heir.Tell(proto::SNAPSHOT_IS_KEPT);
  const absl::Status refused = RunBarrier(*communicator, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("after its set-up"));
}

// What it has got meanwhile is not in the snapshot.
TEST(HeirTest, AnOperationWhileASnapshotIsCopiedLeavesNoHeir) {
  for (const bool is_meanwhile : {false, true}) {
    TestDaemons daemons(1, kGrace);
    {
      BareTrainer first(daemons, 0, 1);
      const auto communicator = first.Connect(proto::LinkHello::COMMUNICATOR);
      first.Tell(proto::SET_UP_IS_OVER);
      first.Tell(proto::SNAPSHOT_IS_KEPT);
      if (!is_meanwhile) {
        EXPECT_TRUE(RunBarrier(*communicator, 1).ok());
      }
      first.Tell(proto::SNAPSHOT_BEGINS);
      if (is_meanwhile) {
        EXPECT_TRUE(RunBarrier(*communicator, 1).ok());
      }
      first.Tell(proto::SNAPSHOT_IS_THROUGH);
    }
    EXPECT_EQ(StatusAfterTheEnd(daemons.server(0)).awaits_heir(), !is_meanwhile);
  }
}

// Its peers wait for it to restore their snapshots together.
TEST(HeirTest, ATrainerThatHasKeptNoSnapshotHasNone) {
  TestDaemons daemons(1, kGrace);
  { const BareTrainer trainer(daemons, 0, 1); }
  EXPECT_FALSE(StatusAfterTheEnd(daemons.server(0)).awaits_heir());
  {
    BareTrainer trainer(daemons, 0, 1);
    trainer.Tell(proto::SET_UP_IS_OVER);
  }
  EXPECT_FALSE(StatusAfterTheEnd(daemons.server(0)).awaits_heir());
}

// Whoever starts trainers may say it before the daemon sees the death, and after it.
TEST(HeirTest, ATrainerInWhosePlaceNobodyIsStartedHasNone) {
  for (const bool is_said_before : {true, false}) {
    TestDaemons daemons(2, kGrace);
    std::string why;
    std::thread peer([&daemons, &why] { why = WhyAPeerEnds(daemons); });
    {
      BareTrainer trainer(daemons, 1, 2);
      trainer.Tell(proto::SNAPSHOT_IS_KEPT);
      if (is_said_before) {
        EXPECT_TRUE(TellOfNoHeir(daemons.PathOf(1), Soon()).ok());
      }
    }
    if (!is_said_before) {
      EXPECT_TRUE(StatusAfterTheEnd(daemons.server(1)).awaits_heir());
      EXPECT_TRUE(TellOfNoHeir(daemons.PathOf(1), Soon()).ok());
    }
    peer.join();
    EXPECT_THAT(why, HasSubstr(absl::StrCat("rank 1's trainer (pid ", kPid, ") is gone")));
    EXPECT_THAT(why, HasSubstr(is_said_before ? "may attach anew" : "nobody starts another one"));
    EXPECT_FALSE(daemons.server(1).Status().awaits_heir());
  }
}

// Deadlines of the others would stand still for ever.
TEST(HeirTest, NobodyIsAwaitedWhereTheDaemonThatKeepsTheAbsentOnesPlaceEnds) {
  TestDaemons daemons(2, kGrace);
  std::string why;
  std::thread peer([&daemons, &why] { why = WhyAPeerEnds(daemons); });
  {
    BareTrainer trainer(daemons, 1, 2);
    trainer.Tell(proto::SNAPSHOT_IS_KEPT);
  }
  EXPECT_TRUE(ComesTrue([&] { return daemons.server(0).Status().absent_size() == 1; }));
  daemons.End(1);
  peer.join();
  EXPECT_THAT(why, HasSubstr("its backend ends before another one has come"));
  EXPECT_THAT(daemons.server(0).Status().absent(), IsEmpty());
}

// Whoever ends the job waits for nobody in it, and what it does next has its deadlines.
TEST(HeirTest, NobodyIsAwaitedByATrainerThatHasEndedTheJobItself) {
  TestDaemons daemons(2, kGrace);
  {
    std::thread peer([&daemons] {
      BareTrainer trainer(daemons, 1, 2);
      trainer.Tell(proto::SNAPSHOT_IS_KEPT);
    });
    const absl::StatusOr<std::unique_ptr<Backend>> backend =
        Backend::Start(daemons.TrainerOptions(0));
    peer.join();
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_TRUE(ComesTrue([&] { return StandsStill(**backend); }));
    (*backend)->Report(absl::CancelledError("the user has had enough"));
    EXPECT_TRUE(ComesTrue([&] { return !StandsStill(**backend); }));
  }
  EXPECT_THAT(daemons.server(0).Status().absent(), IsEmpty());
}

// A GPU of its peers is connected to its own.
TEST(HeirTest, ATrainerThatHasConnectedAGpuHasNone) {
  for (const bool connects : {false, true}) {
    TestDaemons daemons(1, kGrace);
    {
      BareTrainer trainer(daemons, 0, 1);
      if (connects) trainer.Tell(proto::HAS_NO_HEIR);
      trainer.Tell(proto::SNAPSHOT_IS_KEPT);
    }
    EXPECT_EQ(StatusAfterTheEnd(daemons.server(0)).awaits_heir(), !connects);
    // Nor is that held against the next one.
    BareTrainer next(daemons, 0, 1);
    EXPECT_EQ(next.welcome().is_heir(), !connects);
    EXPECT_EQ(next.welcome().code(), 0) << next.welcome().message();
  }
}

// Its peers have that one open, and would not come to open it with an heir once more.
TEST(HeirTest, ATrainerThatOpensACommunicatorAfterItsSetUpHasNone) {
  for (const bool opens : {false, true}) {
    TestDaemons daemons(1, kGrace);
    {
      BareTrainer trainer(daemons, 0, 1);
      trainer.Tell(proto::SET_UP_IS_OVER);
      std::unique_ptr<LinkSocket> late;
      if (opens) late = trainer.Connect(proto::LinkHello::COMMUNICATOR);
      trainer.Tell(proto::SNAPSHOT_IS_KEPT);
    }
    EXPECT_EQ(StatusAfterTheEnd(daemons.server(0)).awaits_heir(), !opens);
  }
}

// As one that crashes while its interpreter ends: an heir would wait to make the model with peers.
TEST(HeirTest, ATrainerThatHasLetItsModelGoHasNone) {
  for (const bool lets_go : {false, true}) {
    TestDaemons daemons(1, kGrace);
    {
      BareTrainer trainer(daemons, 0, 1);
      std::unique_ptr<LinkSocket> socket = trainer.Connect(proto::LinkHello::ROUNDS);
      LinkSocket* const connection = socket.get();
      std::unique_ptr<Model> model = OneTensorModel(std::move(socket));
      trainer.Tell(proto::SNAPSHOT_IS_KEPT);
      if (lets_go) {
        model.reset();
      } else {
        connection->Shutdown();  // without its goodbye
      }
    }
    EXPECT_EQ(StatusAfterTheEnd(daemons.server(0)).awaits_heir(), !lets_go);
  }
}

// Of the rounds before the open one the results of the last are kept, and no others.
TEST(HeirTest, ATrainerWhoseSnapshotIsTwoRoundsBehindHasNone) {
  for (const int rounds_since : {0, 1, 2, 3}) {
    TestDaemons daemons(1, kGrace);
    {
      BareTrainer trainer(daemons, 0, 1);
      std::unique_ptr<LinkSocket> socket = trainer.Connect(proto::LinkHello::ROUNDS);
      LinkSocket* const connection = socket.get();
      const std::unique_ptr<Model> model = OneTensorModel(std::move(socket));
      trainer.Tell(proto::SNAPSHOT_IS_KEPT);
      RunRounds(*model, 2);
      trainer.Tell(proto::SNAPSHOT_BEGINS);
      trainer.Tell(proto::SNAPSHOT_IS_THROUGH);
      RunRounds(*model, rounds_since);
      connection->Shutdown();  // without the model's goodbye
    }
    EXPECT_EQ(StatusAfterTheEnd(daemons.server(0)).awaits_heir(), rounds_since < 2)
        << rounds_since << " rounds since the last snapshot";
  }
}

// An heir could not go on with all ranks, and those that start anew would wait for its.
TEST(HeirTest, ATrainerWhosePeerHasLeftHasNone) {
  TestDaemons daemons(2, kGrace);
  std::thread leaving([&daemons] {
    auto backend = Backend::Start(daemons.TrainerOptions(0));
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_TRUE((*backend)->Stop(Soon()).ok());
  });
  {
    BareTrainer trainer(daemons, 1, 2);
    trainer.Tell(proto::SNAPSHOT_IS_KEPT);
    leaving.join();
    EXPECT_EQ(StatusAfterTheEnd(daemons.server(0)).trainer_pid(), 0);
  }
  EXPECT_FALSE(StatusAfterTheEnd(daemons.server(1)).awaits_heir());
  std::thread other([&daemons] { EXPECT_FALSE(BareTrainer(daemons, 0, 2).welcome().is_heir()); });
  const BareTrainer anew(daemons, 1, 2);
  EXPECT_FALSE(anew.welcome().is_heir());
  EXPECT_EQ(anew.welcome().code(), 0) << anew.welcome().message();
  other.join();
}

// Its daemon does not notice its end meanwhile, which whoever starts trainers has to know.
TEST(WelcomeTest, TheStatusTellsOfATrainerThatWaitsForThoseOfTheOtherRanks) {
  TestDaemons daemons(2);
  const LinkPlace place{daemons.PathOf(0), "default", Rank(0), WorldSize(2)};
  std::thread waits([&place] {
    const absl::Status late =
        LinkClient::Attach(place, Clock::Real().Now() + absl::Seconds(2)).status();
    EXPECT_FALSE(late.ok());
  });
  const absl::Time patience = Soon();
  while (daemons.server(0).Status().trainer_pid() == 0 && Clock::Real().Now() < patience) {
    std::this_thread::yield();
  }
  EXPECT_EQ(daemons.server(0).Status().trainer_pid(), getpid());
  EXPECT_FALSE(daemons.server(0).Status().trainer_is_welcomed());
  waits.join();
  TestDaemons alone(1);
  const BareTrainer trainer(alone, 0, 1);
  EXPECT_TRUE(alone.server(0).Status().trainer_is_welcomed());
}

// Of a trainer that attaches, heir or not.
TEST(WelcomeTest, ADaemonThatEndsOrStandsStillBeforeItsWelcomeIsNamed) {
  const TestDaemons daemons(0);
  const std::string path = daemons.PathOf(0);
  const absl::StatusOr<Descriptor> listener = LinkServer::Listen(path);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const LinkPlace place{path, "default", Rank(0), WorldSize(1)};
  const std::string name = absl::StrCat("the pelton-daemon of rank 0 (pid ", getpid(), ")");
  const absl::Status silent =
      LinkClient::Attach(place, Clock::Real().Now() + absl::Milliseconds(200)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(silent)) << silent;
  EXPECT_THAT(std::string(silent.message()), HasSubstr(absl::StrCat(name, " has not answered")));
  EXPECT_THAT(std::string(silent.message()), HasSubstr("other ranks' trainers have come"));
  std::thread door([&listener] {
    pollfd knocks = {listener->get(), POLLIN, 0};
    for (int i = 0; i < 2; ++i) {  // the one that has given up, and the one that is to come
      poll(&knocks, 1, -1);
      const Descriptor turned_away(accept(listener->get(), nullptr, nullptr));
    }
  });
  const absl::Status gone = LinkClient::Attach(place, Soon()).status();
  door.join();
  unlink(path.c_str());
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr(absl::StrCat(name, " is gone: ")));
}

}  // namespace
}  // namespace pelton
