// A daemon's part of a model's rounds with trainers that stop anywhere or write nonsense.
#include "backend/link/rounds_server.h"

#include <cstddef>
#include <cstdint>
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
#include "core/actor/waker.h"
#include "core/base/clock.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

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

// A trainer that does not keep to the protocol: what it has of the page and the socket.
// Threads: one. Owns: its end.
class RawTrainer {
 public:
  static absl::StatusOr<std::unique_ptr<RawTrainer>> Attach(
      Backend& backend, uint64_t standalone_bytes = PlanOptions::kNoStandalone) {
    SocketPair sockets = SocketPair::Make();
    auto raw = std::make_unique<RawTrainer>();
    raw->socket_ = std::move(sockets.trainer);
    link::RoundsQuestion question;
    ModelOptions options = Options(backend, "gradient_allreduce");
    options.standalone_bytes = standalone_bytes;
    *question.mutable_make() = ToMessage(options, Tensors());
    RETURN_IF_ERROR(raw->socket_->Send(question, Soon()));
    ASSIGN_OR_RETURN(raw->server_,
                     ModelServer::Serve(backend, {.socket = std::move(sockets.daemon)}));
    ASSIGN_OR_RETURN(LinkSocket::Message answer, raw->socket_->Receive(Soon()));
    ASSIGN_OR_RETURN(LinkPage page,
                     LinkPage::Map(answer.descriptors.front().get(), std::size(kCounts)));
    raw->page_ = std::make_unique<LinkPage>(std::move(page));
    return raw;
  }

  const LinkPage& page() const { return *page_; }
  void Kick() { Waker(&page_->header().daemon_sleeps).Kick(); }
  absl::StatusOr<link::RoundsAnswer> Ask(const link::RoundsQuestion& question) {
    RETURN_IF_ERROR(socket_->Send(question, Soon()));
    link::RoundsAnswer answer;
    RETURN_IF_ERROR(socket_->Receive(answer, Soon()));
    return answer;
  }
  LinkSocket& socket() { return *socket_; }
  // Ends as a killed process does: its end of the socket closes.
  absl::Status Die() {
    socket_.reset();
    const absl::Time end = Soon();
    while (!server_->is_over()) {
      if (Clock::Real().Now() > end) return absl::DeadlineExceededError("the daemon saw nothing");
      std::this_thread::yield();
    }
    server_.reset();  // joins its threads
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<ModelServer> server_;
  std::unique_ptr<LinkSocket> socket_;
  std::unique_ptr<LinkPage> page_;
};

// The stores of a round in their order, up to `count` of them, with a wake-up after each.
void StoreSome(RawTrainer& trainer, const Plan& plan, int count) {
  std::vector<std::function<void()>> stores;
  const LinkPage& page = trainer.page();
  for (const BucketLayout& bucket : plan.buckets()) {
    for (SlotId slot : bucket.slots) {
      stores.emplace_back([&page, slot] { page.slot(slot).mark.store(3); });
    }
    stores.emplace_back([&page, id = bucket.id] { page.bucket(id).ready.store(1); });
  }
  stores.emplace_back([&page] { page.header().timeout_ns.store(1'000'000'000); });
  stores.emplace_back([&page] { page.header().waited.store(1); });
  for (size_t i = 0; i < stores.size() && i < static_cast<size_t>(count); ++i) {
    stores[i]();
    trainer.Kick();
  }
}

TEST(RoundsServerTest, SurvivesATrainerThatDiesBetweenAnyTwoStores) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    for (int count = 0; count <= 12; ++count) {
      BackendOptions own = options;
      own.job = absl::StrCat("job ", count);  // what a death in a round ends is its own
      ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(own));
      ASSIGN_OR_RETURN(std::unique_ptr<RawTrainer> trainer, RawTrainer::Attach(*backend));
      ASSIGN_OR_RETURN(const Plan plan,
                       PlanOf(Options(*backend, "gradient_allreduce"),
                              **MakeAlgorithm("gradient_allreduce", {}), Tensors()));
      StoreSome(*trainer, plan, count);
      RETURN_IF_ERROR(trainer->Die());
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

constexpr RegionId kRegion{7};
constexpr uint64_t kPlaceBytes = 4096;  // of each tensor there

// Has all tensors lie in kRegion, behind each other from `offset` on, and waits for round 1.
void StoreStandalone(RawTrainer& trainer, uint64_t offset) {
  const LinkPage& page = trainer.page();
  for (int32_t i = 0; i < static_cast<int32_t>(std::size(kCounts)); ++i) {
    page.slot(SlotId(i)).region.store(kRegion.value());
    page.slot(SlotId(i)).offset.store(offset + static_cast<uint64_t>(i) * kPlaceBytes);
    page.slot(SlotId(i)).mark.store(3);
  }
  for (int32_t i = 0; i < static_cast<int32_t>(std::size(kCounts)); ++i) {
    page.bucket(BucketId(i)).ready.store(1);
  }
  page.header().timeout_ns.store(20'000'000'000);
  page.header().waited.store(1);
  trainer.Kick();
}

absl::Status SendRegion(RawTrainer& trainer, const Region& region) {
  link::RoundsQuestion question;
  question.mutable_region()->set_number(kRegion.value());
  const int descriptor = region.descriptor();
  return trainer.socket().Send(question.SerializeAsString(), {&descriptor, 1}, Soon());
}

absl::Status AwaitEndOfRound(const RawTrainer& trainer) {
  const absl::Time end = Soon();
  while (trainer.page().header().ended.load() == 0) {
    if (Clock::Real().Now() > end) return absl::DeadlineExceededError("the round has not ended");
    std::this_thread::yield();
  }
  return trainer.page().outcome();
}

// The descriptor travels apart from the page, and may be the later one.
TEST(RoundsServerTest, ABucketWaitsForTheMemoryOfItsTensors) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<RawTrainer> trainer, RawTrainer::Attach(*backend, 1));
    ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                     Region::Create(std::size(kCounts) * kPlaceBytes, "tensors"));
    StoreStandalone(*trainer, 0);
    // Is answered by the thread that looks at the page, after it has.
    RETURN_IF_ERROR(trainer->Ask({}).status());
    EXPECT_EQ(trainer->page().header().ended.load(), 0);
    RETURN_IF_ERROR(SendRegion(*trainer, *region));
    RETURN_IF_ERROR(AwaitEndOfRound(*trainer));
    return trainer->Die();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

TEST(RoundsServerTest, APlaceOutsideOfItsRegionEndsTheRoundByName) {
  for (const uint64_t offset : {kPlaceBytes, ~uint64_t{0} - 3, uint64_t{2}}) {
    const auto ended = RunRanks(1, [&](const BackendOptions& options) {
      ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
      ASSIGN_OR_RETURN(std::unique_ptr<RawTrainer> trainer, RawTrainer::Attach(*backend, 1));
      ASSIGN_OR_RETURN(std::unique_ptr<Region> region,
                       Region::Create(std::size(kCounts) * kPlaceBytes, "tensors"));
      RETURN_IF_ERROR(SendRegion(*trainer, *region));
      StoreStandalone(*trainer, offset);
      const absl::Status refused = AwaitEndOfRound(*trainer);
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("t")) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr(" of a region")) << refused;
      return trainer->Die();
    });
    EXPECT_TRUE(ended[0].ok()) << ended[0];
  }
}

TEST(RoundsServerTest, AnswersABucketWithoutItsMarksByName) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<RawTrainer> trainer, RawTrainer::Attach(*backend));
    const PageHeader& header = trainer->page().header();
    trainer->page().bucket(BucketId(0)).ready.store(1);
    trainer->page().header().timeout_ns.store(20'000'000'000);
    trainer->page().header().waited.store(1);
    trainer->Kick();
    const absl::Time end = Soon();
    while (header.ended.load() == 0 && Clock::Real().Now() < end) std::this_thread::yield();
    EXPECT_EQ(header.ended.load(), 1);
    EXPECT_THAT(std::string(trainer->page().outcome().message()),
                HasSubstr("is ready in round 1, its tensor 't4' in round 0"));
    return trainer->Die();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

// Random bytes over everything that a trainer may write; the daemon ends every such round with an
// error, or takes it for what it says, and serves the next trainer.
TEST(RoundsServerTest, SurvivesAnyPage) {
  constexpr uint64_t kSeed = 20261124;
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    for (uint64_t world = 0; world < 30; ++world) {
      BackendOptions own = options;
      own.job = absl::StrCat("job ", world);
      ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(own));
      ASSIGN_OR_RETURN(std::unique_ptr<RawTrainer> trainer, RawTrainer::Attach(*backend));
      uint64_t index = 0;
      const auto draw = [&] { return SplitMix(kSeed + world, index++); };
      for (int turn = 0; turn < 200; ++turn) {
        const LinkPage& page = trainer->page();
        PageHeader& header = page.header();
        // Small numbers are rounds that there are; large ones are nonsense.
        const auto word = [&] {
          return draw() % 3 == 0 ? draw() : header.ended.load() + draw() % 3;
        };
        for (int32_t i = 0; i < static_cast<int32_t>(std::size(kCounts)); ++i) {
          page.slot(SlotId(i)).mark.store(word() * 2 + draw() % 2);
          page.bucket(BucketId(i)).ready.store(word());
        }
        header.mode.store(static_cast<uint32_t>(draw() % 4));
        header.measures.store(static_cast<uint32_t>(draw() % 2));
        header.timeout_ns.store(static_cast<int64_t>(draw() % 3 == 0 ? draw() : 1000));
        header.waited.store(word());
        header.daemon_sleeps.store(static_cast<uint32_t>(draw() % 5));
        trainer->Kick();
      }
      RETURN_IF_ERROR(trainer->Die());
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0] << ", seed " << kSeed;
}

TEST(RoundsServerTest, RefusesQuestionsOutOfTurn) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<RawTrainer> trainer, RawTrainer::Attach(*backend));
    const auto refusal = [&](const link::RoundsQuestion& question) {
      const absl::StatusOr<link::RoundsAnswer> answer = trainer->Ask(question);
      return answer.ok() ? std::string(FromMessage(answer->status()).message())
                         : answer.status().ToString();
    };
    link::RoundsQuestion question;
    EXPECT_THAT(refusal(question), HasSubstr("question 0 cannot be asked"));
    question.mutable_make();
    EXPECT_THAT(refusal(question), HasSubstr("cannot be asked of a model that serves"));
    question.mutable_load_states();
    EXPECT_THAT(refusal(question), HasSubstr("no memory comes with it"));
    question.mutable_begin_agreement();
    EXPECT_THAT(refusal(question), HasSubstr("an empty list of words"));
    question.mutable_replan()->add_order(-7);
    EXPECT_NE(refusal(question), "");
    question.mutable_begin_agreement()->add_words(1);
    EXPECT_EQ(refusal(question), "");
    EXPECT_THAT(refusal(question), HasSubstr("an agreement is under way"));
    RETURN_IF_ERROR(trainer->socket().Send("\xFF\xFF nonsense", {}, Soon()));
    return trainer->Die();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

}  // namespace
}  // namespace pelton
