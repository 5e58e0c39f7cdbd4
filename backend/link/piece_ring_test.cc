#include "backend/link/piece_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

namespace pelton {
namespace {

constexpr uint64_t kPieceBytes = 4096;

// Both ends over one region, and the trainer's tensors. Threads: one. Owns: all of it.
struct Ends {
  explicit Ends(size_t size_bytes, bool in_place = false)
      : source(size_bytes), apart(in_place ? 0 : size_bytes) {
    std::iota(source.begin(), source.end(), uint8_t{1});
    auto created = Region::Create(piece_ring::SizeOf(kPieceBytes), "ring");
    EXPECT_TRUE(created.ok()) << created.status();
    region = *std::move(created);
    feeder = std::make_unique<PieceFeeder>(
        *region,
        PieceFeeder::Tensor{reinterpret_cast<const std::byte*>(source.data()),
                            reinterpret_cast<std::byte*>(target().data()), size_bytes},
        kPieceBytes);
    auto opened = PieceRing::Over(*region, kPieceBytes, [this] { ++wakes; });
    EXPECT_TRUE(opened.ok()) << opened.status();
    ring = *std::move(opened);
  }

  std::vector<uint8_t>& target() { return apart.empty() ? source : apart; }
  uint64_t count() const { return (source.size() + kPieceBytes - 1) / kPieceBytes; }
  // As a reduction of one rank more would.
  bool Reduce(uint64_t piece) {
    const std::optional<Location> place = ring->Take(piece);
    if (!place.has_value()) return false;
    auto* const bytes = reinterpret_cast<uint8_t*>(region->data() + place->offset);
    const uint64_t size = std::min(kPieceBytes, source.size() - piece * kPieceBytes);
    for (uint64_t i = 0; i < size; ++i) bytes[i] += 5;
    ring->GiveBack(piece);
    return true;
  }

  std::vector<uint8_t> source;
  std::vector<uint8_t> apart;
  std::unique_ptr<Region> region;
  std::unique_ptr<PieceFeeder> feeder;
  std::unique_ptr<PieceRing> ring;
  int wakes = 0;
};

TEST(PieceRingTest, EachPieceGoesInAndItsResultOut) {
  for (const bool in_place : {false, true}) {
    for (const size_t size :
         {kPieceBytes, kPieceBytes + 1, 4 * kPieceBytes, 9 * kPieceBytes + 77}) {
      Ends ends(size, in_place);
      const std::vector<uint8_t> before = ends.source;
      for (uint64_t piece = 0; piece < ends.count();) {
        if (ends.Reduce(piece)) {
          ++piece;
        } else {
          ASSERT_TRUE(ends.feeder->Advance()) << size << " piece " << piece;
        }
      }
      ends.feeder->Finish();
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(ends.target()[i], static_cast<uint8_t>(before[i] + 5)) << size << " at " << i;
      }
    }
  }
}

TEST(PieceRingTest, ResultsThatAreNotThereChangeNothing) {
  Ends ends(6 * kPieceBytes);
  EXPECT_FALSE(ends.feeder->Advance());
  EXPECT_EQ(ends.apart, std::vector<uint8_t>(ends.source.size()));
  ASSERT_TRUE(ends.Reduce(0));
  EXPECT_TRUE(ends.feeder->Advance());
  EXPECT_NE(ends.apart[kPieceBytes - 1], 0);
  EXPECT_EQ(ends.apart[kPieceBytes], 0);
}

TEST(PieceRingTest, ADaemonThatWaitsIsToldOnce) {
  Ends ends(6 * kPieceBytes);
  for (uint64_t piece = 0; piece < piece_ring::kPlaces; ++piece) ASSERT_TRUE(ends.Reduce(piece));
  EXPECT_FALSE(ends.feeder->OwesNews());
  EXPECT_FALSE(ends.Reduce(piece_ring::kPlaces));
  EXPECT_TRUE(ends.ring->waits());
  EXPECT_FALSE(ends.feeder->OwesNews()) << "of a piece that is not there";
  ASSERT_TRUE(ends.feeder->Advance());
  EXPECT_TRUE(ends.feeder->OwesNews());
  EXPECT_FALSE(ends.feeder->OwesNews());
  EXPECT_TRUE(ends.Reduce(piece_ring::kPlaces));
  EXPECT_FALSE(ends.ring->waits());
}

TEST(PieceRingTest, ATrainerThatSleepsIsWokenWhenAllIsReduced) {
  Ends ends(9 * kPieceBytes);
  ASSERT_TRUE(ends.feeder->MaySleep());
  for (uint64_t piece = 0; piece + 1 < piece_ring::kPlaces; ++piece) {
    ASSERT_TRUE(ends.Reduce(piece));
  }
  EXPECT_EQ(ends.wakes, 0);
  ASSERT_TRUE(ends.Reduce(piece_ring::kPlaces - 1));
  EXPECT_EQ(ends.wakes, 1);
  ASSERT_TRUE(ends.feeder->Advance());
  ASSERT_TRUE(ends.Reduce(piece_ring::kPlaces));
  EXPECT_EQ(ends.wakes, 1) << "it is awake";
}

TEST(PieceRingTest, TheOperationsEndWakesForTheLastPieces) {
  Ends ends(piece_ring::kPlaces * kPieceBytes);
  EXPECT_TRUE(ends.feeder->MaySleep());
  for (uint64_t piece = 0; piece < piece_ring::kPlaces; ++piece) ASSERT_TRUE(ends.Reduce(piece));
  EXPECT_EQ(ends.wakes, 0);
}

TEST(PieceRingTest, ATrainerDoesNotSleepBesideResults) {
  Ends ends(9 * kPieceBytes);
  for (uint64_t piece = 0; piece < piece_ring::kPlaces; ++piece) ASSERT_TRUE(ends.Reduce(piece));
  EXPECT_FALSE(ends.feeder->MaySleep());
  while (ends.feeder->Advance()) continue;
  EXPECT_TRUE(ends.feeder->MaySleep());
}

TEST(PieceRingTest, ABoardThatCountsTooHighBringsOutNoMoreThanWentIn) {
  Ends ends(2 * kPieceBytes);
  ends.ring->GiveBack(1'000'000);
  ends.feeder->Finish();
  EXPECT_EQ(ends.apart, ends.source) << "as nobody has reduced it";
  EXPECT_FALSE(ends.feeder->Advance());
}

TEST(PieceRingTest, ARegionThatIsTooSmallIsRefused) {
  auto region = Region::Create(piece_ring::kBoardBytes, "small");
  ASSERT_TRUE(region.ok());
  const absl::Status status = PieceRing::Over(**region, kPieceBytes, [] {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace pelton
