// Allreduces of which some ranks bring their tensors piece by piece.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/transport/shm/test_transports.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/region.h"

namespace pelton::shm {
namespace {

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(20); }

// A tensor of which each piece comes at the second look, and all in one place.
// Threads: one. Owns: the region, and what has come of it.
class OnePlace final : public Pieces {
 public:
  OnePlace(std::vector<int32_t> source, uint64_t piece_bytes)
      : result(source.size()), source_(std::move(source)), piece_count_(piece_bytes / 4) {
    region_ = *Region::Create(piece_bytes, "place");
  }

  const Region& region() const { return *region_; }
  std::optional<Location> Take(uint64_t index) override {
    if (std::exchange(looked_at_, index + 1) != index + 1) return std::nullopt;
    std::memcpy(region_->data(), &source_[index * piece_count_], SizeOf(index));
    return Location{region_->id(), 0};
  }
  void GiveBack(uint64_t index) override {
    EXPECT_EQ(index, given_back++);
    std::memcpy(&result[index * piece_count_], region_->data(), SizeOf(index));
  }

  std::vector<int32_t> result;
  uint64_t given_back = 0;

 private:
  size_t SizeOf(uint64_t index) const {
    return std::min(piece_count_, source_.size() - index * piece_count_) * sizeof(int32_t);
  }

  const std::vector<int32_t> source_;
  const uint64_t piece_count_;
  std::unique_ptr<Region> region_;
  uint64_t looked_at_ = 0;
};

Operation SumOf(uint64_t count) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.dtype = DType::kInt32;
  operation.count = count;
  return operation;
}

std::vector<int32_t> SourceOf(int rank, uint64_t count) {
  std::vector<int32_t> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i * 7 + rank * 1000);
  return values;
}

absl::Status CheckSum(const int32_t* values, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    if (values[i] == static_cast<int32_t>(3 * i * 7 + 3000)) continue;
    return absl::InternalError(absl::StrCat("of ", count, ": ", values[i], " at ", i));
  }
  return absl::OkStatus();
}

// Rank 0 brings pieces, rank 1 has a region, rank 2 private memory.
absl::Status Sum(Communicator& communicator, uint64_t count) {
  const std::vector<int32_t> source = SourceOf(communicator.rank().value(), count);
  if (communicator.rank() == Rank(0)) {
    OnePlace pieces(source, communicator.piece_bytes());
    RETURN_IF_ERROR(communicator.Register(pieces.region()));
    ASSIGN_OR_RETURN(const Completion done, communicator.LaunchInPieces(SumOf(count), pieces));
    const absl::Status ended = Await(communicator, done, Soon());
    communicator.Deregister(pieces.region().id());
    RETURN_IF_ERROR(ended);
    return CheckSum(pieces.result.data(), count);
  }
  std::vector<int32_t> own = source;
  ASSIGN_OR_RETURN(std::unique_ptr<Region> region, Region::Create(count * 4, "tensor"));
  auto* values = own.data();
  if (communicator.rank() == Rank(1)) {
    values = reinterpret_cast<int32_t*>(region->data());
    std::memcpy(values, source.data(), count * 4);
    RETURN_IF_ERROR(communicator.Register(*region));
  }
  const Tensor tensor{values, count, DType::kInt32};
  ASSIGN_OR_RETURN(const Completion done, AllReduce(communicator, tensor, tensor, ReduceOp::kSum));
  const absl::Status ended = Await(communicator, done, Soon());
  communicator.Deregister(region->id());
  RETURN_IF_ERROR(ended);
  return CheckSum(values, count);
}

void RunRanks(absl::Status (*body)(Communicator& communicator)) {
  std::vector<std::unique_ptr<Transport>> transports = MakeTestTransports(WorldSize(3));
  std::vector<std::thread> ranks;
  for (std::unique_ptr<Transport>& transport : transports) {
    ranks.emplace_back([&transport, body] {
      auto communicator = transport->Open(CommunicatorId(1), Group::World(WorldSize(3)), Soon());
      ASSERT_TRUE(communicator.ok()) << communicator.status();
      const absl::Status status = body(**communicator);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(PiecesTest, RanksSumTheirTensorsHoweverEachBringsThem) {
  RunRanks([](Communicator& communicator) -> absl::Status {
    const uint64_t piece = communicator.piece_bytes() / 4;
    // The second one's last piece is so small that it travels with its post.
    for (const uint64_t count : {piece + piece / 2 + 1, 2 * piece + 3, 3 * piece}) {
      RETURN_IF_ERROR(Sum(communicator, count));
    }
    return absl::OkStatus();
  });
}

TEST(PiecesTest, RanksThatDisagreeGoOn) {
  RunRanks([](Communicator& communicator) -> absl::Status {
    const uint64_t count = communicator.piece_bytes() / 4 + 10;
    OnePlace pieces(SourceOf(0, count + 1), communicator.piece_bytes());
    RETURN_IF_ERROR(communicator.Register(pieces.region()));
    const uint64_t other = communicator.rank() == Rank(1) ? count + 1 : count;
    ASSIGN_OR_RETURN(const Completion done, communicator.LaunchInPieces(SumOf(other), pieces));
    const absl::Status differs = Await(communicator, done, Soon());
    EXPECT_TRUE(absl::IsInvalidArgument(differs)) << differs;
    EXPECT_EQ(pieces.given_back, 0u);
    communicator.Deregister(pieces.region().id());
    return Sum(communicator, count);
  });
}

TEST(PiecesTest, WhatIsNoLargeAllreduceIsRefused) {
  RunRanks([](Communicator& communicator) -> absl::Status {
    const uint64_t count = communicator.piece_bytes() / 4;
    OnePlace pieces(SourceOf(0, count), communicator.piece_bytes());
    Operation operation = SumOf(count);
    EXPECT_TRUE(absl::IsInvalidArgument(communicator.LaunchInPieces(operation, pieces).status()));
    operation = SumOf(4 * count);
    operation.kind = OperationKind::kAllGather;
    const absl::Status refused = communicator.LaunchInPieces(operation, pieces).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace pelton::shm
