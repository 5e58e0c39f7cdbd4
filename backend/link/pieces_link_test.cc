// What daemons do not take as it is launched: large allreduces of memory that they do not see,
// which trainers bring piece by piece, and more messages than there is room for.
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/link/test_daemons.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPieceCount = (1 << 20) / sizeof(int32_t);

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(20); }

// As the trainers of two ranks, each on a thread.
void RunTrainers(const std::function<absl::Status(Backend&, std::unique_ptr<Communicator>)>& body,
                 TestDaemons::Hosts hosts = TestDaemons::Hosts::kOne) {
  TestDaemons daemons(2, absl::ZeroDuration(), hosts);
  std::vector<std::thread> trainers;
  for (int rank = 0; rank < 2; ++rank) {
    trainers.emplace_back([&, rank] {
      auto backend = Backend::Start(daemons.TrainerOptions(rank));
      ASSERT_TRUE(backend.ok()) << backend.status();
      auto communicator = (*backend)->Open(Group::World((*backend)->world_size()));
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      const absl::Status status = body(**backend, *std::move(communicator));
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE((*backend)->Stop(Soon()).ok());
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
}

// A sum's tensors, with an element before and behind that nobody may touch.
// Threads: one. Owns: its memory.
class Sum {
 public:
  Sum(Rank rank, uint64_t count, bool in_place)
      : count_(count), source_(count + 2), target_(in_place ? 0 : count + 2) {
    for (uint64_t i = 0; i < source_.size(); ++i) {
      source_[i] = static_cast<int32_t>(i * 3 + rank.value());
    }
  }

  absl::StatusOr<Completion> Launch(Communicator& communicator) {
    return AllReduce(communicator, {&source_[1], count_, DType::kInt32},
                     {&result()[1], count_, DType::kInt32}, ReduceOp::kSum);
  }
  absl::Status Check(Rank rank) {
    for (uint64_t i = 0; i < count_ + 2; ++i) {
      const bool is_guard = i == 0 || i == count_ + 1;
      const auto own = static_cast<int32_t>(i * 3 + rank.value());
      const int32_t guard = target_.empty() ? own : 0;
      const int32_t expected = is_guard ? guard : static_cast<int32_t>(i * 6 + 1);
      if (result()[i] == expected) continue;
      return absl::InternalError(absl::StrCat(result()[i], " at ", i, " of ", count_));
    }
    return absl::OkStatus();
  }
  std::vector<int32_t>& result() { return target_.empty() ? source_ : target_; }

 private:
  const uint64_t count_;
  std::vector<int32_t> source_;
  std::vector<int32_t> target_;
};

TEST(PiecesLinkTest, TensorsOfAnySizeAreSummedInPlaceAndApart) {
  RunTrainers([](Backend& backend, std::unique_ptr<Communicator> communicator) -> absl::Status {
    for (const uint64_t count :
         {kPieceCount, kPieceCount + 1, 4 * kPieceCount, 9 * kPieceCount + 5}) {
      for (const bool in_place : {false, true}) {
        Sum sum(backend.rank(), count, in_place);
        ASSIGN_OR_RETURN(const Completion done, sum.Launch(*communicator));
        RETURN_IF_ERROR(Await(*communicator, done, Soon()));
        RETURN_IF_ERROR(sum.Check(backend.rank()));
      }
    }
    return absl::OkStatus();
  });
}

// More rings than the pool keeps.
TEST(PiecesLinkTest, SeveralAreUnderWayAtATime) {
  RunTrainers([](Backend& backend, std::unique_ptr<Communicator> communicator) -> absl::Status {
    std::vector<std::unique_ptr<Sum>> sums;
    std::vector<Completion> launched;
    for (uint64_t i = 0; i < 6; ++i) {
      sums.push_back(std::make_unique<Sum>(backend.rank(), (1 + i) * kPieceCount + 9, i % 2 == 0));
      ASSIGN_OR_RETURN(launched.emplace_back(), sums.back()->Launch(*communicator));
    }
    for (const Completion& completion : launched) {
      RETURN_IF_ERROR(Await(*communicator, completion, Soon()));
    }
    for (const std::unique_ptr<Sum>& sum : sums) RETURN_IF_ERROR(sum->Check(backend.rank()));
    return absl::OkStatus();
  });
}

// Ranks whose memory is shared have nothing to bring, and take part with the whole of it.
TEST(PiecesLinkTest, OneRankHasSharedMemory) {
  RunTrainers([](Backend& backend, std::unique_ptr<Communicator> communicator) -> absl::Status {
    const uint64_t count = 5 * kPieceCount + 77;
    if (backend.rank() == Rank(0)) {
      Sum sum(backend.rank(), count, true);
      ASSIGN_OR_RETURN(const Completion done, sum.Launch(*communicator));
      RETURN_IF_ERROR(Await(*communicator, done, Soon()));
      return sum.Check(backend.rank());
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Region> region, Region::Create(count * 4, "shared"));
    RETURN_IF_ERROR(communicator->Register(*region));
    auto* const values = reinterpret_cast<int32_t*>(region->data());
    for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>((i + 1) * 3 + 1);
    const Tensor tensor{values, count, DType::kInt32};
    ASSIGN_OR_RETURN(const Completion done,
                     AllReduce(*communicator, tensor, tensor, ReduceOp::kSum));
    RETURN_IF_ERROR(Await(*communicator, done, Soon()));
    communicator->Deregister(region->id());
    for (uint64_t i = 0; i < count; ++i) {
      if (values[i] != static_cast<int32_t>((i + 1) * 6 + 1))
        return absl::InternalError(absl::StrCat(i));
    }
    return absl::OkStatus();
  });
}

TEST(PiecesLinkTest, AnAbortGivesTheTensorBackAtOnce) {
  RunTrainers([](Backend& backend, std::unique_ptr<Communicator> communicator) -> absl::Status {
    if (backend.rank() == Rank(1)) return absl::OkStatus();
    Sum sum(backend.rank(), 6 * kPieceCount, true);
    const std::vector<int32_t> before = sum.result();
    ASSIGN_OR_RETURN(const Completion done, sum.Launch(*communicator));
    communicator->Abort(absl::AbortedError("enough"));
    const OperationRunner::State state = communicator->Query(done);
    EXPECT_TRUE(state.done);
    EXPECT_TRUE(absl::IsAborted(state.status)) << state.status;
    communicator->Progress();
    EXPECT_EQ(sum.result(), before);
    communicator.reset();
    return absl::OkStatus();
  });
}

// It has brought what the ring holds.
TEST(PiecesLinkTest, ATrainerThatGoesInTheMiddleEndsTheOthersWaits) {
  RunTrainers([](Backend& backend, std::unique_ptr<Communicator> communicator) -> absl::Status {
    Sum sum(backend.rank(), 9 * kPieceCount, false);
    ASSIGN_OR_RETURN(const Completion done, sum.Launch(*communicator));
    if (backend.rank() == Rank(1)) {
      communicator.reset();  // before its memory
      return absl::OkStatus();
    }
    const absl::Time start = Clock::Real().Now();
    const absl::Status ended = Await(*communicator, done, Soon());
    EXPECT_FALSE(ended.ok());
    EXPECT_FALSE(absl::IsDeadlineExceeded(ended)) << ended;
    EXPECT_LT(Clock::Real().Now() - start, absl::Seconds(15)) << "its deadline is after 20 s";
    return absl::OkStatus();
  });
}

// The communicator between hosts takes fewer messages at once than a trainer may launch.
TEST(RoomTest, MessagesBetweenHostsWaitInTheDaemonForTheirPlace) {
  const auto exchange = [](Backend& backend,
                           std::unique_ptr<Communicator> communicator) -> absl::Status {
    constexpr int kPairs = limits::kMaxOperationsInFlight / 2;
    const Rank peer(1 - backend.rank().value());
    std::vector<int32_t> mine(kPairs), theirs(kPairs, -1), expected(kPairs);
    std::vector<Completion> launched;
    for (int i = 0; i < kPairs; ++i) {
      mine[i] = 1000 * backend.rank().value() + i;
      expected[i] = 1000 * peer.value() + i;
      ASSIGN_OR_RETURN(launched.emplace_back(),
                       Send(*communicator, {&mine[i], 1, DType::kInt32}, peer));
      ASSIGN_OR_RETURN(launched.emplace_back(),
                       Recv(*communicator, {&theirs[i], 1, DType::kInt32}, peer));
    }
    for (const Completion& one : launched) RETURN_IF_ERROR(Await(*communicator, one, Soon()));
    return theirs == expected ? absl::OkStatus() : absl::InternalError("other values have come");
  };
  RunTrainers(exchange, TestDaemons::Hosts::kOneEach);
}

TEST(RoomTest, WhoIsMissingIsNamedWhileMessagesWaitInTheDaemon) {
  const auto receive = [](Backend& backend,
                          std::unique_ptr<Communicator> communicator) -> absl::Status {
    if (backend.rank() == Rank(1)) return Barrier(backend.control(), "done", Soon());
    std::vector<int32_t> values(limits::kMaxOperationsInFlight);
    for (int32_t& value : values) {
      RETURN_IF_ERROR(Recv(*communicator, {&value, 1, DType::kInt32}, Rank(1)).status());
    }
    const absl::Status missed =
        Await(*communicator, {1}, Clock::Real().Now() + absl::Milliseconds(300));
    EXPECT_THAT(std::string(missed.message()), HasSubstr("waiting for rank(s) 1"));
    return Barrier(backend.control(), "done", Soon());
  };
  RunTrainers(receive, TestDaemons::Hosts::kOneEach);
}

}  // namespace
}  // namespace pelton
