// All-to-all with parts of different sizes, which every transport's sends and receives carry.
#include <vector>

#include "comm/all_to_all_v.h"
#include "comm/transport/conformance/test_world.h"

namespace pelton::conformance {
namespace {

Tensor TensorOf(std::vector<int32_t>& values) {
  return {values.data(), values.size(), DType::kInt32};
}

// How much `from` sends to `to`: nothing, a little, or more than a transport copies at once.
uint64_t CountOf(int32_t from, int32_t to) {
  constexpr uint64_t kCounts[] = {0, 1, 17, 70001};
  return kCounts[static_cast<size_t>(from * 3 + to) % 4];
}

int32_t ValueOf(int32_t from, int32_t to, uint64_t i) {
  return from * 1000 + to * 100 + static_cast<int32_t>(i % 100);
}

// One rank's tensors; parts lie in the order of the ranks, some elements apart.
struct Sides {
  std::vector<TensorPart> parts;
  std::vector<int32_t> values;

  void Append(uint64_t count) {
    constexpr uint64_t kGap = 3;
    parts.push_back({values.size() + kGap, count});
    values.resize(values.size() + kGap + count, -1);
  }
};

// Without tags its messages cannot be told from others.
void ExpectRefusal(TestWorld& world) {
  world.Run([](Communicator& communicator) {
    const auto ranks = static_cast<size_t>(communicator.world_size().value());
    if (ranks == 1) return;
    std::vector<int32_t> out(ranks), in(ranks);
    std::vector<TensorPart> parts;
    for (size_t i = 0; i < ranks; ++i) parts.push_back({i, 1});
    EXPECT_FALSE(
        AllToAllV(communicator, TensorOf(out), parts, TensorOf(in), parts, FarDeadline()).ok());
  });
}

TEST_P(TransportConformanceTest, AllToAllVMovesPartsOfAnySize) {
  for (int32_t ranks : {2, 1, 3, 7}) {
    TestWorld world(GetParam(), ranks);
    if (!world.promises().has_tags) return ExpectRefusal(world);
    world.Run([&](Communicator& communicator) {
      const int32_t self = communicator.rank().value();
      Sides source, target;
      for (int32_t peer = 0; peer < ranks; ++peer) {
        source.Append(CountOf(self, peer));
        target.Append(CountOf(peer, self));
        const TensorPart part = source.parts.back();
        for (uint64_t i = 0; i < part.count; ++i) {
          source.values[part.offset + i] = ValueOf(self, peer, i);
        }
      }
      ASSERT_EQ(AllToAllV(communicator, TensorOf(source.values), source.parts,
                          TensorOf(target.values), target.parts, FarDeadline()),
                absl::OkStatus());
      std::vector<int32_t> expected(target.values.size(), -1);
      for (int32_t peer = 0; peer < ranks; ++peer) {
        const TensorPart part = target.parts[static_cast<size_t>(peer)];
        for (uint64_t i = 0; i < part.count; ++i) {
          expected[part.offset + i] = ValueOf(peer, self, i);
        }
      }
      EXPECT_EQ(target.values, expected) << "rank " << self << " of " << ranks;
    });
    world.ExpectUsable();
  }
}

// Rank 0 sends rank 1 one element more than that expects: both are told, rank 2 is served.
TEST_P(TransportConformanceTest, AllToAllVTellsThePairWhoseSizesDiffer) {
  TestWorld world(GetParam(), 3);
  if (!world.promises().has_tags || !world.promises().survives_disagreement) return;
  world.Run([](Communicator& communicator) {
    const int32_t self = communicator.rank().value();
    std::vector<int32_t> out(9, self), in(9, -1);
    std::vector<TensorPart> source = {{0, 2}, {2, 2}, {5, 2}};
    const std::vector<TensorPart> target = {{0, 2}, {2, 2}, {4, 2}};
    if (self == 0) source[1].count = 3;
    const absl::Status status =
        AllToAllV(communicator, TensorOf(out), source, TensorOf(in), target, FarDeadline());
    EXPECT_EQ(status.code(), self == 2 ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
        << status;
    if (self == 2) {
      EXPECT_EQ(in, std::vector<int32_t>({0, 0, 1, 1, 2, 2, -1, -1, -1}));
    }
  });
  world.ExpectUsable();
}

}  // namespace
}  // namespace pelton::conformance
