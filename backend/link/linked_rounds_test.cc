// A model's rounds over a link against the same rounds in process, ranks as threads over shared
// memory; and what becomes of them when one side goes.
#include "backend/link/linked_rounds.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/link/page.h"
#include "backend/link/rounds_messages.h"
#include "backend/link/test_links.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/bucket/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr int kRounds = 5;
constexpr uint64_t kCounts[] = {300, 1, 70, 513, 33};

std::vector<TensorSpec> Tensors() {
  std::vector<TensorSpec> tensors;
  for (uint64_t count : kCounts) {
    tensors.push_back({.name = absl::StrCat("t", tensors.size()), .count = count});
  }
  return tensors;
}

ModelOptions Options(const Backend& backend, const std::string& algorithm) {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(backend.world_size());
  options.algorithm = algorithm;
  options.bucket_size_bytes = 1500;
  options.timeout = absl::Seconds(30);
  return options;
}

// Tensor 1 nobody uses, tensor 2 rank 0 alone, the others now and then.
bool Uses(int32_t rank, int round, int32_t slot) {
  if (slot == 1) return false;
  if (slot == 2) return rank == 0;
  return (rank + round + slot) % 4 != 0;
}

// Where a rank's standalone tensors lie: every other one in no shared memory. Threads: one. Owns:
// the memory.
class OwnMemory {
 public:
  void* At(int32_t slot) {
    const auto i = static_cast<size_t>(slot);
    if (slot % 2 != 0) return private_[i];
    if (shared_[i] == nullptr) shared_[i] = Region::Create(sizeof(private_[i]), "tensor").value();
    return shared_[i]->data() + 64;  // not at its beginning
  }
  RegionId RegionOf(int32_t slot) { return shared_[static_cast<size_t>(slot)]->id(); }

 private:
  float private_[std::size(kCounts)][600];
  std::unique_ptr<Region> shared_[std::size(kCounts)];
};

bool IsStandalone(const ModelRounds& rounds, int32_t slot) {
  return rounds.plan().slot(SlotId(slot)).standalone;
}

void FillAt(void* data, int32_t slot, int32_t rank, int round) {
  auto* const values = static_cast<float*>(data);
  for (uint64_t i = 0; i < kCounts[slot]; ++i) {
    const int number = static_cast<int>(i) * 7 + slot + rank * 3;
    values[i] = static_cast<float>(number % 23 - 11) * 0.13F * static_cast<float>(round + 1);
  }
}

void Fill(ModelRounds& rounds, int32_t slot, int32_t rank, int round) {
  FillAt(rounds.DataOf(SlotId(slot)), slot, rank, round);
}

// `own`: of standalone tensors; null where the plan has none.
absl::Status Produce(ModelRounds& rounds, int32_t rank, int round, OwnMemory* own = nullptr) {
  for (int32_t i = 0; i < static_cast<int32_t>(std::size(kCounts)); ++i) {
    const auto slot = static_cast<int32_t>((i * 3 + rank) % std::size(kCounts));
    if (!Uses(rank, round, slot)) continue;
    if (IsStandalone(rounds, slot)) {
      FillAt(own->At(slot), slot, rank, round);
      RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot), own->At(slot)));
      continue;
    }
    Fill(rounds, slot, rank, round);
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
  }
  return rounds.EndRound();
}

// Everything that a rank has seen, as text: results, what was used, what was communicated, the
// order, and the stages' state.
using Log = std::vector<std::string>;

void AddResults(ModelRounds& rounds, Log& log) {
  for (size_t i = 0; i < std::size(kCounts); ++i) {
    const SlotResult result = rounds.ResultOf(SlotId(static_cast<int32_t>(i)));
    log.emplace_back(reinterpret_cast<const char*>(result.data), result.size_bytes);
    log.push_back(absl::StrCat("used ", result.used_by_any));
    log.push_back(absl::StrCat("next ", rounds.Communicates(SlotId(static_cast<int32_t>(i)))));
  }
}

absl::Status AddStates(ModelRounds& rounds, Log& log) {
  ASSIGN_OR_RETURN(const std::vector<SlotState> states, rounds.SaveStates(Soon()));
  for (const SlotState& state : states) {
    log.push_back(absl::StrCat(state.key, " of ", state.slot.value(), " from ", state.begin_count));
    log.emplace_back(reinterpret_cast<const char*>(state.bytes.data()), state.bytes.size());
  }
  return absl::OkStatus();
}

// Buckets follow rank 0's order from then on.
absl::Status ChangePlan(ModelRounds& rounds, Log& log) {
  ASSIGN_OR_RETURN(const std::vector<SlotId> order, rounds.AgreeOnOrder(Soon()));
  for (SlotId slot : order) log.push_back(absl::StrCat("slot ", slot.value()));
  return rounds.Replan(order, Soon());
}

// The same on all ranks, as Prime wants it.
absl::Status Prime(ModelRounds& rounds) {
  for (size_t i = 0; i < std::size(kCounts); ++i) {
    const auto slot = static_cast<int32_t>(i);
    if (!IsStandalone(rounds, slot)) Fill(rounds, slot, 0, 0);
  }
  return rounds.Prime(Soon());
}

absl::StatusOr<Log> Train(ModelRounds& rounds, int32_t rank) {
  Log log;
  OwnMemory own;
  RETURN_IF_ERROR(Prime(rounds));
  for (int round = 0; round < kRounds; ++round) {
    RETURN_IF_ERROR(Produce(rounds, rank, round, &own));
    RETURN_IF_ERROR(rounds.WaitRound(Soon()));
    AddResults(rounds, log);
    RETURN_IF_ERROR(AddStates(rounds, log));
    if (round == 1) RETURN_IF_ERROR(ChangePlan(rounds, log));
  }
  ASSIGN_OR_RETURN(const std::vector<SlotState> states, rounds.SaveStates(Soon()));
  RETURN_IF_ERROR(rounds.LoadStates(states, Soon()));
  RETURN_IF_ERROR(AddStates(rounds, log));
  log.push_back(absl::StrCat("round ", rounds.round().value()));
  return log;
}

using Body = std::function<absl::Status(Backend& backend, LinkedPair& pair, int32_t rank)>;

// Runs `body` on every rank of a world whose models are linked. `job_fails`: it makes the job fail,
// so that ranks cannot meet once more.
void RunLinked(int world_size, const std::string& algorithm, const Body& body,
               bool job_fails = false, uint64_t standalone_bytes = PlanOptions::kNoStandalone) {
  const auto ended = RunRanks(world_size, [&](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions model = Options(*backend, algorithm);
    model.standalone_bytes = standalone_bytes;
    ASSIGN_OR_RETURN(std::unique_ptr<LinkedPair> pair,
                     LinkedPair::Create(*backend, model, Tensors()));
    RETURN_IF_ERROR(body(*backend, *pair, options.rank.value()));
    return job_fails ? absl::OkStatus() : Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
}

class LinkedAlgorithmTest : public ::testing::TestWithParam<std::string> {};

// The same training over a link and in process.
void ExpectEqual(const std::string& algorithm, uint64_t standalone_bytes) {
  constexpr int kRanks = 2;
  std::vector<Log> linked(kRanks);
  std::vector<Log> local(kRanks);
  const Body both = [&](Backend& backend, LinkedPair& pair, int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    ModelOptions options = Options(backend, algorithm);
    options.standalone_bytes = standalone_bytes;
    ASSIGN_OR_RETURN(linked[i], Train(pair.model().rounds(), rank));
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Create(backend, options, Tensors()));
    ASSIGN_OR_RETURN(local[i], Train(model->rounds(), rank));
    EXPECT_EQ(pair.model().rounds().plan().Hash(), model->rounds().plan().Hash());
    EXPECT_EQ(pair.model().sent_bytes() > 0, model->sent_bytes() > 0);
    EXPECT_EQ(pair.model().rank(), Rank(rank));
    return Barrier(backend.control(), "both", Soon());
  };
  RunLinked(kRanks, algorithm, both, /*job_fails=*/false, standalone_bytes);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(linked[rank].size(), local[rank].size());
    for (size_t i = 0; i < local[rank].size(); ++i) {
      ASSERT_EQ(linked[rank][i], local[rank][i]) << "rank " << rank << ", entry " << i;
    }
  }
}

TEST_P(LinkedAlgorithmTest, EqualsRoundsInProcessBitByBit) {
  ExpectEqual(GetParam(), PlanOptions::kNoStandalone);
}

TEST_P(LinkedAlgorithmTest, EqualsThemWhereTensorsLieOutsideOfTheirBuckets) {
  ExpectEqual(GetParam(), 200);  // the first, the third with 280 bytes, and the fourth
}

std::vector<std::string> AlgorithmNames() {
  std::vector<std::string> names;
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    names.push_back(entry.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, LinkedAlgorithmTest, ::testing::ValuesIn(AlgorithmNames()),
                         [](const auto& info) { return info.param; });

// What two installations would do: marks of one plan's slots in another one's buckets.
TEST(LinkedRoundsTest, ADaemonThatHasPlannedOtherwiseIsRefused) {
  const auto plan_of = [](uint64_t bucket_size_bytes) {
    PlanOptions options;
    options.bucket_size_bytes = bucket_size_bytes;
    return Plan::Build(Tensors(), options).value();
  };
  SocketPair sockets = SocketPair::Make();
  LinkedRounds::Attachment attachment;
  attachment.socket = std::move(sockets.trainer);
  attachment.page = LinkPage::Create(std::size(kCounts), 1).value();
  attachment.plan_hash = plan_of(3000).Hash();
  attachment.model_name = "net";
  attachment.rank = Rank(2);
  const absl::Status refused = LinkedRounds::Create(plan_of(1500), std::move(attachment)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  for (const char* part :
       {"rank 2", "'net'", "planned the buckets otherwise", "one installation"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
}

TEST(LinkedRoundsTest, FollowsThePlansThatATunerTries) {
  RunLinked(2, "gradient_allreduce", [](Backend&, LinkedPair& pair, int32_t rank) {
    ModelRounds& rounds = pair.model().rounds();
    rounds.times().Begin(std::size(kCounts));
    for (int round = 0; round < 6; ++round) {
      RETURN_IF_ERROR(Produce(rounds, rank, round));
      RETURN_IF_ERROR(rounds.WaitRound(Soon()));
      const SlotResult whole = rounds.ResultOf(SlotId(0));
      float first = 0;
      std::memcpy(&first, whole.data, sizeof(first));
      const float expected = static_cast<float>(round + 1) * 0.13F / 2 *
                             (-11.0F * static_cast<float>(Uses(0, round, 0)) +
                              -8.0F * static_cast<float>(Uses(1, round, 0)));
      EXPECT_NEAR(first, expected, 1e-5) << "round " << round;
      const uint64_t size = round % 2 == 0 ? 300 : 100000;
      RETURN_IF_ERROR(
          rounds.Resize({SlotId(4), SlotId(3), SlotId(2), SlotId(1), SlotId(0)}, size, Soon()));
      EXPECT_EQ(rounds.plan().buckets().size(), round % 2 == 0 ? 4U : 1U);
    }
    EXPECT_GT(rounds.times().ready_ns(BucketId(0)), 0) << "measured by the daemon";
    EXPECT_GE(rounds.times().done_ns(BucketId(0)), rounds.times().ready_ns(BucketId(0)));
    return absl::OkStatus();
  });
}

TEST(LinkedRoundsTest, TellsTheFutureOfARound) {
  RunLinked(2, "gradient_allreduce", [](Backend&, LinkedPair& pair, int32_t rank) {
    ModelRounds& rounds = pair.model().rounds();
    for (int round = 0; round < 3; ++round) {
      RETURN_IF_ERROR(Produce(rounds, rank, round));
      Future<void> done = rounds.RoundDone(Soon());
      RETURN_IF_ERROR(rounds.CloseRound(std::move(done).Await(Soon())));
    }
    EXPECT_EQ(rounds.round(), Round(4));
    return absl::OkStatus();
  });
}

TEST(LinkedRoundsTest, NamesTheTensorsThatAreMissing) {
  RunLinked(
      1, "gradient_allreduce",
      [](Backend&, LinkedPair& pair, int32_t) {
        ModelRounds& rounds = pair.model().rounds();
        for (int32_t slot : {0, 1, 2, 4}) RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
        const absl::Status late = rounds.WaitRound(Clock::Real().Now() + absl::Milliseconds(50));
        EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
        EXPECT_THAT(std::string(late.message()), HasSubstr("t3"));
        EXPECT_THAT(std::string(late.message()), ::testing::Not(HasSubstr("t4")));
        return absl::OkStatus();
      },
      /*job_fails=*/true);
}

TEST(LinkedRoundsTest, AMarkIsRefusedAsInProcess) {
  RunLinked(1, "gradient_allreduce", [](Backend&, LinkedPair& pair, int32_t) {
    ModelRounds& rounds = pair.model().rounds();
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(0)));
    EXPECT_EQ(rounds.MarkReady(SlotId(0)).code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(rounds.MarkReady(SlotId(99)).code(), absl::StatusCode::kInvalidArgument);
    RETURN_IF_ERROR(rounds.EndRound());
    EXPECT_EQ(rounds.EndRound().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(rounds.Agreed(Soon()).status().code(), absl::StatusCode::kFailedPrecondition);
    return rounds.WaitRound(Soon());
  });
}

TEST(LinkedRoundsTest, AnAbortEndsTheWaitsOfAllRanks) {
  RunLinked(
      2, "gradient_allreduce",
      [](Backend&, LinkedPair& pair, int32_t rank) {
        ModelRounds& rounds = pair.model().rounds();
        if (rank == 0) rounds.Abort(absl::AbortedError("the user has had enough"));
        // The daemon reads it beside the page, so that rounds may be complete before.
        absl::Status ended;
        const absl::Time patience = Soon();
        for (int32_t round = 0; ended.ok() && Clock::Real().Now() < patience; ++round) {
          RETURN_IF_ERROR(Produce(rounds, rank, round));
          ended = rounds.WaitRound(Soon());
        }
        EXPECT_THAT(std::string(ended.message()), HasSubstr("the user has had enough"));
        RETURN_IF_ERROR(Produce(rounds, rank, 1));
        EXPECT_THAT(std::string(rounds.WaitRound(Soon()).message()),
                    HasSubstr("the user has had enough"))
            << "as every later one";
        return absl::OkStatus();
      },
      /*job_fails=*/true);
}

TEST(LinkedRoundsTest, ATrainerThatGoesInARoundIsNamedToTheOthers) {
  RunLinked(
      2, "gradient_allreduce",
      [](Backend&, LinkedPair& pair, int32_t rank) {
        ModelRounds& rounds = pair.model().rounds();
        if (rank == 0) {
          RETURN_IF_ERROR(Produce(rounds, rank, 0));
          EXPECT_THAT(std::string(rounds.WaitRound(Soon()).message()), HasSubstr("rank 1"));
          return absl::OkStatus();
        }
        // A bucket is under way, in which rank 0 waits for the other ones.
        for (int32_t slot : {4, 3}) RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
        pair.EndTrainer();
        const absl::Time end = Soon();
        while (!pair.is_over() && Clock::Real().Now() < end) std::this_thread::yield();
        EXPECT_TRUE(pair.is_over());
        pair.EndServer();
        return absl::OkStatus();
      },
      /*job_fails=*/true);
}

TEST(LinkedRoundsTest, ADaemonThatGoesEndsWaitsAndLeavesTheBuckets) {
  RunLinked(
      1, "gradient_allreduce",
      [](Backend&, LinkedPair& pair, int32_t) {
        ModelRounds& rounds = pair.model().rounds();
        Fill(rounds, 3, 0, 0);
        const float before = *reinterpret_cast<const float*>(rounds.DataOf(SlotId(3)));
        pair.EndServer();
        for (int attempt = 0; attempt < 2; ++attempt) {
          const absl::Time start = Clock::Real().Now();
          const absl::Status gone = rounds.WaitRound(Soon());
          EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
          EXPECT_THAT(std::string(gone.message()),
                      HasSubstr(absl::StrCat("its pelton-daemon (pid ", getpid(),
                                             ") is gone; its log says")));
          EXPECT_LT(Clock::Real().Now() - start, absl::Seconds(10));
        }
        EXPECT_EQ(rounds.SaveStates(Soon()).status().code(), absl::StatusCode::kUnavailable);
        EXPECT_EQ(*reinterpret_cast<const float*>(rounds.DataOf(SlotId(3))), before);
        return absl::OkStatus();
      },
      /*job_fails=*/true);
}

// Marks all tensors of a plan in which each lies outside of its bucket.
absl::Status MarkAll(ModelRounds& rounds, OwnMemory& own) {
  for (int32_t slot = 0; slot < static_cast<int32_t>(std::size(kCounts)); ++slot) {
    FillAt(own.At(slot), slot, 0, 0);
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot), own.At(slot)));
  }
  return absl::OkStatus();
}

TEST(LinkedRoundsTest, AModelThatIsLetGoInARoundGivesTheTensorsMemoryBack) {
  RunLinked(
      1, "gradient_allreduce",
      [](Backend&, LinkedPair& pair, int32_t) {
        OwnMemory own;
        RETURN_IF_ERROR(MarkAll(pair.model().rounds(), own));
        pair.EndTrainer();
        EXPECT_FALSE(IsUnshared(own.RegionOf(0))) << "the daemon has said that it is through";
        return absl::OkStatus();
      },
      /*job_fails=*/true, /*standalone_bytes=*/1);
}

// The daemons of other ranks may be in the middle of a write.
TEST(LinkedRoundsTest, WhatADaemonHadUnderWayWhenItWentIsTakenBack) {
  RunLinked(
      1, "gradient_allreduce",
      [](Backend&, LinkedPair& pair, int32_t) {
        OwnMemory own;
        RETURN_IF_ERROR(MarkAll(pair.model().rounds(), own));
        pair.EndServer();
        EXPECT_EQ(pair.model().rounds().WaitRound(Soon()).code(), absl::StatusCode::kUnavailable);
        EXPECT_TRUE(IsUnshared(own.RegionOf(0)));
        return absl::OkStatus();
      },
      /*job_fails=*/true, /*standalone_bytes=*/1);
}

// A trainer that goes between rounds leaves its daemon, so that the others' daemons see nothing.
TEST(LinkedRoundsTest, AFailureThatTheTrainerHearsOfEndsItsWaits) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    std::atomic<bool> has_failed{false};
    std::vector<std::string> told;
    LinkedJob job;
    job.on_failure = [&](const absl::Status& status) { told.emplace_back(status.message()); };
    job.failure = [&] {
      return has_failed ? absl::UnavailableError("rank 7's trainer is gone") : absl::OkStatus();
    };
    ASSIGN_OR_RETURN(std::unique_ptr<LinkedPair> pair,
                     LinkedPair::Create(*backend, Options(*backend, "gradient_allreduce"),
                                        Tensors(), std::move(job)));
    ModelRounds& rounds = pair->model().rounds();
    RETURN_IF_ERROR(Produce(rounds, 0, 0));
    RETURN_IF_ERROR(rounds.WaitRound(Soon()));
    has_failed = true;
    for (int attempt = 0; attempt < 2; ++attempt) {
      RETURN_IF_ERROR(rounds.MarkReady(SlotId(0)));  // the other ones never come
      EXPECT_THAT(std::string(rounds.WaitRound(Soon()).message()),
                  HasSubstr("rank 7's trainer is gone"));
    }
    EXPECT_EQ(told.size(), 1U) << "once";
    return absl::OkStatus();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

// Attaches over `sockets`, at whose other end the test is the daemon.
absl::Status AttachTo(SocketPair& sockets, LinkedJob job, absl::Time deadline) {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(WorldSize(1));
  return AttachModel(std::move(sockets.trainer), std::move(job), options,
                     *MakeAlgorithm("gradient_allreduce", {}), Tensors(), deadline)
      .status();
}

TEST(LinkedRoundsTest, AFailureThatTheTrainerHearsOfEndsTheMakingOfItsModel) {
  SocketPair sockets = SocketPair::Make();  // whose daemon says nothing
  LinkedJob job;
  job.failure = [] { return absl::UnavailableError("rank 7's trainer is gone"); };
  const absl::Status ended = AttachTo(sockets, std::move(job), Soon());
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("rank 7's trainer is gone"));
}

// The daemon gives up at the same moment, and knows better why.
TEST(LinkedRoundsTest, WhatTheDaemonSaysAtTheDeadlineIsHeard) {
  SocketPair sockets = SocketPair::Make();
  const absl::Time deadline = Clock::Real().Now() + absl::Milliseconds(300);
  std::thread daemon([&] {
    ASSERT_TRUE(sockets.daemon->Receive(Soon()).ok());
    EXPECT_TRUE(absl::IsDeadlineExceeded(sockets.daemon->Receive(deadline).status()));
    link::RoundsAnswer answer;
    *answer.mutable_status() = ToMessage(absl::DeadlineExceededError("missing: 1"));
    EXPECT_TRUE(sockets.daemon->Send(answer, Soon()).ok());
  });
  const absl::Status ended = AttachTo(sockets, {}, deadline);
  daemon.join();
  EXPECT_EQ(ended.message(), "missing: 1") << ended;
}

TEST(LinkedRoundsTest, WhatTheDaemonCannotMakeIsSaidToTheTrainer) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions wrong = Options(*backend, "gradient_allreduce");
    wrong.group.members = {Rank(5)};
    const absl::Status refused = LinkedPair::Create(*backend, wrong, Tensors()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    std::vector<TensorSpec> on_gpu = Tensors();
    on_gpu[2].device = {DeviceKind::kCuda, 0};
    const absl::Status gpu = AttachModel(std::move(SocketPair::Make().trainer), {.rank = Rank(0)},
                                         Options(*backend, "gradient_allreduce"),
                                         *MakeAlgorithm("gradient_allreduce", {}), on_gpu, Soon())
                                 .status();
    EXPECT_EQ(gpu.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(gpu.message()), HasSubstr("start the job without --backend daemon"));
    return absl::OkStatus();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

}  // namespace
}  // namespace pelton
