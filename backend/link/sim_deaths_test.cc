// Who dies between any two stores: a trainer or a daemon, at the place that the seed chooses, in
// one thread and virtual time.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/link/linked_model.h"
#include "backend/link/model_server.h"
#include "backend/link/test_linked_training.h"
#include "backend/link/test_links.h"
#include "backend/link/test_sim_link_world.h"
#include "comm/group.h"
#include "core/actor/sim_test.h"
#include "core/actor/sim_threads.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int32_t kRanks = 2;
constexpr uint64_t kRounds = 4;
constexpr uint64_t kSeeds = 150;
// A trainer comes to about as many, and a daemon to more, in a run that nobody disturbs.
constexpr uint64_t kTrainersPauses = 100;
constexpr uint64_t kDaemonsPauses = 150;

// What a process's end leaves of its socket: the peer sees it closed, and the number stays taken.
void CloseAsTheKernelDoes(int socket) {
  const Descriptor nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  PELTON_CHECK(nothing.is_open());
  PELTON_CHECK(dup3(nothing.get(), socket, O_CLOEXEC) == socket);
}

// A daemon of one rank, which serves one trainer after the other as LinkServer does.
// Threads: those of `process`. Owns: the models, until the test's end, because the memory of a
// process that has died is not looked at by destructors.
class SimDaemon {
 public:
  SimDaemon(SimLinkWorld& world, Rank rank, bool keeps_progress)
      : world_(world), rank_(rank), keeps_progress_(keeps_progress) {
    process.on_death = [this] {
      died_at_ = world_.executor().Now();
      CloseAsTheKernelDoes(socket_);
      world_.fabric().KillRank(rank_);
    };
  }

  void Start() {
    world_.threads().Start(process, [this] {
      while (AwaitConnection()) Serve();
    });
  }
  // The trainer's end of a new connection.
  std::unique_ptr<LinkSocket> Connect() {
    SocketPair sockets = SocketPair::Make();
    connections_.push_back(std::move(sockets.daemon));
    return std::move(sockets.trainer);
  }
  void Stop() { is_stopping_ = true; }
  absl::Time died_at() const { return died_at_; }

  SimThreads::Process process;
  // At which pause from the first attachment on it dies.
  uint64_t dies_after = SimThreads::kNever;

 private:
  bool AwaitConnection() {
    const auto has_come = [this] { return is_stopping_ || !connections_.empty(); };
    return world_.threads().WaitUntil(has_come, absl::InfiniteFuture()) && !connections_.empty();
  }

  void Serve() {
    ModelServerOptions options = world_.Serving(rank_);
    options.socket = std::move(connections_.front());
    connections_.pop_front();
    socket_ = options.socket->descriptor();
    options.attachment = ++attachment_;
    options.keeps_progress = keeps_progress_;
    options.find_left = [this](const std::string& name, absl::Time) {
      return shelf_.Take(attachment_, name);
    };
    options.put_back = [this](std::unique_ptr<ModelServer> left) {
      shelf_.PutBack(std::move(left));
    };
    shelf_.Serves(attachment_);
    absl::StatusOr<std::unique_ptr<ModelServer>> made = ModelServer::Serve(std::move(options));
    ASSERT_TRUE(made.ok()) << made.status();
    shelf_.HasMade((*made)->name());
    std::unique_ptr<ModelServer>& server = served_.emplace_back(*std::move(made));
    if (dies_after != SimThreads::kNever) process.dies_at = process.pauses + dies_after;
    world_.threads().WaitUntil([&] { return server->is_over(); }, absl::InfiniteFuture());
    process.dies_at = SimThreads::kNever;  // of what comes now nobody sees anything
    const std::string name = server->name();
    std::unique_ptr<ModelServer> left = server->is_left() ? std::move(server) : nullptr;
    server.reset();
    shelf_.HasServed(attachment_, name, std::move(left));
  }

  SimLinkWorld& world_;
  const Rank rank_;
  const bool keeps_progress_;
  std::deque<std::unique_ptr<LinkSocket>> connections_;
  std::deque<std::unique_ptr<ModelServer>> served_;
  ModelShelf shelf_;
  uint64_t attachment_ = 0;
  int socket_ = -1;
  absl::Time died_at_ = absl::InfiniteFuture();
  bool is_stopping_ = false;
};

// What the seed chooses of a job.
struct Settings {
  std::string algorithm;
  AlgorithmOptions options;
  uint64_t standalone_bytes = PlanOptions::kNoStandalone;
};

ModelOptions OptionsOf(const Settings& settings) {
  ModelOptions options = TrainedModel(settings.algorithm, settings.standalone_bytes);
  options.algorithm_options = settings.options;
  options.group = Group::World(WorldSize(kRanks));
  return options;
}

Settings Draw(SimExecutor& executor) {
  // In the last one each round runs one bucket's pipeline or the other's.
  const Settings algorithms[] = {{"gradient_allreduce", {}},
                                 {"bytegrad", {}},
                                 {"power_sgd", {{"rank", "1"}, {"start_round", "1"}}},
                                 {"decentralized", {}},
                                 {"diloco", {{"interval", "4"}, {"fragments", "2"}}}};
  Settings settings = algorithms[executor.Uniform(std::size(algorithms))];
  if (executor.Uniform(2) == 0) settings.standalone_bytes = 200;
  return settings;
}

// What each rank sees of each round, by rank and round, where nobody dies: in process.
using Seen = std::vector<std::vector<RankLog>>;

const Seen& Undisturbed(const Settings& settings) {
  static auto* const known = new std::map<std::pair<std::string, uint64_t>, Seen>();
  const auto [found, is_new] = known->try_emplace({settings.algorithm, settings.standalone_bytes});
  if (!is_new) return found->second;
  Seen seen(kRanks);
  SimThreads::Process process;
  SimLinkWorld world(1, kRanks);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    world.threads().Start(process, [&, rank] {
      OwnMemory own;
      const auto model = world.MakeModel(Rank(rank), OptionsOf(settings), TrainedTensors()).value();
      for (uint64_t round = 1; round <= kRounds; ++round) {
        ModelRounds& rounds = model->rounds();
        PELTON_CHECK_OK(Produce(rounds, rank, static_cast<int>(round), &own));
        PELTON_CHECK_OK(rounds.WaitRound(absl::InfiniteFuture()));
        AddResults(rounds, seen[static_cast<size_t>(rank)].emplace_back());
      }
      PELTON_CHECK_OK(world.Meet("end"));
    });
  }
  PELTON_CHECK(world.threads().RunUntilAllEnd());
  found->second = std::move(seen);
  return found->second;
}

// One trainer after the other of a rank.
// Threads: those of the processes, one of which lives at a time. Owns: what they have made, until
// the test's end, as SimDaemon.
class SimTrainers {
 public:
  SimTrainers(SimLinkWorld& world, SimDaemon& daemon, Rank rank, const Settings& settings,
              const std::vector<RankLog>& expected)
      : world_(world), daemon_(daemon), rank_(rank), settings_(settings), expected_(expected) {}

  // At which pauses from its attachment on the first one dies, the second, and so on.
  std::vector<uint64_t> deaths;
  // Why the job has failed, as the backend would know; may be empty.
  std::function<absl::Status()> failure;

  bool have_heirs = true;

  // Until one has trained all rounds. Errors: of the last one's rounds; Aborted: it has died, and
  // there are no heirs.
  absl::Status Run() {
    while (true) {
      const size_t number = processes_.size();
      SimThreads::Process& process = processes_.emplace_back();
      bool has_ended = false;
      absl::Status status;
      world_.threads().Start(process, [&, number] {
        status = Train(process, number);
        has_ended = true;
      });
      const auto is_over = [&] { return has_ended || process.is_dead; };
      if (!world_.threads().WaitUntil(is_over, absl::InfiniteFuture())) {
        return absl::InternalError("a trainer waits for what does not come");
      }
      ended_at_ = world_.executor().Now();
      if (has_ended) return status;
      if (!have_heirs) return absl::AbortedError("it has died");
    }
  }
  int32_t dead_count() const {
    int32_t count = 0;
    for (const SimThreads::Process& process : processes_) count += process.is_dead ? 1 : 0;
    return count;
  }
  // The last one goes in good order, if it has not died.
  void LetGo() {
    if (!models_.empty() && !processes_.back().is_dead) models_.back().reset();
  }
  absl::Time ended_at() const { return ended_at_; }

 private:
  absl::Status Train(SimThreads::Process& process, size_t number) {
    std::unique_ptr<LinkSocket> socket = daemon_.Connect();
    process.on_death = [descriptor = socket->descriptor()] { CloseAsTheKernelDoes(descriptor); };
    ModelOptions options = OptionsOf(settings_);
    options.first_round = Round(kept_ + 1);
    LinkedJob job;
    job.rank = rank_;
    job.failure = failure;
    ASSIGN_OR_RETURN(auto attached,
                     AttachModel(std::move(socket), std::move(job), options,
                                 *MakeAlgorithm(options.algorithm, options.algorithm_options),
                                 TrainedTensors(), world_.executor().Now() + absl::Seconds(20)));
    Model& model = *models_.emplace_back(std::move(attached));
    if (number < deaths.size()) process.dies_at = process.pauses + deaths[number];
    const absl::Status status = RunRounds(model.rounds());
    process.dies_at = SimThreads::kNever;
    return status;
  }

  absl::Status RunRounds(ModelRounds& rounds) {
    OwnMemory& own = memory_.emplace_back();
    const uint64_t first = kept_ + 1;
    uint64_t to_keep = kept_;
    for (uint64_t round = first; round <= kRounds; ++round) {
      RETURN_IF_ERROR(Produce(rounds, rank_.value(), static_cast<int>(round), &own));
      // A snapshot of the step before counts by now.
      kept_ = to_keep;
      RETURN_IF_ERROR(rounds.WaitRound(world_.executor().Now() + absl::Seconds(20)));
      RankLog log;
      AddResults(rounds, log);
      EXPECT_EQ(log, expected_[round - 1])
          << "rank " << rank_.value() << ", round " << round << ", of a trainer that began in "
          << first << " under " << settings_.algorithm;
      to_keep = round;
      if (world_.executor().Uniform(2) == 0) kept_ = to_keep;
    }
    return absl::OkStatus();
  }

  SimLinkWorld& world_;
  SimDaemon& daemon_;
  const Rank rank_;
  const Settings settings_;
  const std::vector<RankLog>& expected_;  // by round
  uint64_t kept_ = 0;                     // rounds that the newest snapshot has in it
  absl::Time ended_at_;
  std::deque<SimThreads::Process> processes_;
  std::deque<OwnMemory> memory_;
  std::deque<std::unique_ptr<Model>> models_;
};

// A job: a daemon and its trainers for each rank, and what starts new ones. The world's threads go
// before what they have made.
// Threads: one. Owns: all of it.
class SimJob {
 public:
  SimJob(uint64_t seed, bool keeps_progress)
      : world_(seed, kRanks),
        settings_(Draw(executor())),
        expected_(Undisturbed(settings_)),
        keeps_progress_(keeps_progress) {
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      daemons_.emplace_back(world_, Rank(rank), keeps_progress).Start();
    }
    AddTrainers();
  }
  ~SimJob() {
    for (SimDaemon& each : daemons_) each.Stop();
    EXPECT_TRUE(world_.threads().RunUntilAllEnd()) << "a daemon waits for what does not come";
  }
  SimJob(const SimJob&) = delete;
  SimJob& operator=(const SimJob&) = delete;

  // New ones, after those that have ended.
  void AddTrainers() {
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      const auto place = static_cast<size_t>(rank);
      SimTrainers& added =
          trainers_.emplace_back(world_, daemons_[place], Rank(rank), settings_, expected_[place]);
      added.have_heirs = keeps_progress_;
    }
  }

  SimLinkWorld& world() { return world_; }
  SimExecutor& executor() { return world_.executor(); }
  SimDaemon& daemon(int32_t rank) { return daemons_[static_cast<size_t>(rank)]; }
  SimTrainers& trainers(int32_t rank) {
    return trainers_[trainers_.size() - kRanks + static_cast<size_t>(rank)];
  }
  const Settings& settings() const { return settings_; }

  // By rank, how its last trainer has ended.
  std::vector<absl::Status> Run() {
    std::vector<absl::Status> ended(kRanks);
    int32_t ended_count = 0;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      world_.threads().Start(launcher_, [this, rank, &ended, &ended_count] {
        ended[static_cast<size_t>(rank)] = trainers(rank).Run();
        ++ended_count;
      });
    }
    const auto are_over = [&] { return ended_count == kRanks; };
    EXPECT_TRUE(world_.threads().WaitUntil(are_over, executor().Now() + absl::Minutes(5)));
    for (int32_t rank = 0; rank < kRanks; ++rank) trainers(rank).LetGo();
    return ended;
  }

 private:
  SimThreads::Process launcher_;
  SimLinkWorld world_;
  const Settings settings_;
  const Seen& expected_;
  const bool keeps_progress_;
  std::deque<SimDaemon> daemons_;
  std::deque<SimTrainers> trainers_;
};

TEST(SimDeathsTest, AnHeirGoesOnBitwiseWhereverItsFormerDied) {
  int32_t deaths = 0;
  uint64_t seeds = 0;
  ForEachSeed(kSeeds, [&](uint64_t seed) {
    SimJob job(seed, /*keeps_progress=*/true);
    const absl::Time start = job.executor().Now();
    const auto victim = static_cast<int32_t>(job.executor().Uniform(kRanks));
    const uint64_t count = 1 + job.executor().Uniform(3);
    for (uint64_t i = 0; i < count; ++i) {
      job.trainers(victim).deaths.push_back(1 + job.executor().Uniform(kTrainersPauses));
    }
    for (const absl::Status& status : job.Run()) {
      EXPECT_TRUE(status.ok()) << status << ", under " << job.settings().algorithm;
    }
    if (job.world().is_without_latency()) {
      EXPECT_EQ(job.executor().Now(), start) << "a wake-up was lost: a park has ended by its time";
    }
    deaths += job.trainers(victim).dead_count();
    ++seeds;
  });
  EXPECT_GE(deaths, static_cast<int32_t>(seeds / 2)) << "of " << seeds << " seeds";
}

TEST(SimDeathsTest, WithoutAnHeirTheOthersAreToldWhoIsGone) {
  ForEachSeed(kSeeds, [&](uint64_t seed) {
    SimJob job(seed, /*keeps_progress=*/false);
    const auto victim = static_cast<int32_t>(job.executor().Uniform(kRanks));
    SimTrainers& dying = job.trainers(victim);
    dying.deaths.push_back(1 + job.executor().Uniform(kTrainersPauses));
    // What a death between rounds is known by.
    job.trainers(1 - victim).failure = [&] {
      return dying.dead_count() > 0 ? absl::UnavailableError("its trainer is gone")
                                    : absl::OkStatus();
    };
    const std::vector<absl::Status> ended = job.Run();
    if (dying.dead_count() == 0) {
      for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
      return;
    }
    const absl::Status& other = ended[static_cast<size_t>(1 - victim)];
    if (!other.ok()) {
      // Between two rounds its daemon leaves the group as one that lets a model go.
      EXPECT_THAT(std::string(other.message()),
                  AnyOf(AllOf(HasSubstr("trainer"), HasSubstr("is gone")),
                        HasSubstr(absl::StrCat("rank ", victim, " closed the communicator"))));
    }
    job.AddTrainers();
    for (const absl::Status& status : job.Run()) EXPECT_TRUE(status.ok()) << status << ", anew";
  });
}

TEST(SimDeathsTest, ADaemonsDeathEndsTheWaitsOfItsTrainerAndOfTheOthers) {
  int32_t deaths = 0;
  ForEachSeed(kSeeds, [&](uint64_t seed) {
    SimJob job(seed, /*keeps_progress=*/seed % 2 == 0);
    const auto victim = static_cast<int32_t>(job.executor().Uniform(kRanks));
    job.daemon(victim).dies_after = 1 + job.executor().Uniform(kDaemonsPauses);
    const std::vector<absl::Status> ended = job.Run();
    if (!job.daemon(victim).process.is_dead) {
      for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
      return;
    }
    ++deaths;
    EXPECT_LT(job.trainers(victim).ended_at() - job.daemon(victim).died_at(), absl::Seconds(1));
    const absl::Status& own = ended[static_cast<size_t>(victim)];
    if (!own.ok()) {
      EXPECT_EQ(own.code(), absl::StatusCode::kUnavailable) << own;
      EXPECT_THAT(std::string(own.message()), HasSubstr("pelton-daemon")) << own;
    }
    const absl::Status& other = ended[static_cast<size_t>(1 - victim)];
    if (!other.ok()) {
      EXPECT_THAT(std::string(other.message()), HasSubstr("died")) << other;
    }
  });
  EXPECT_GT(deaths, 0);
}

}  // namespace
}  // namespace pelton
