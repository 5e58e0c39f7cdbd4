#include "backend/link/trainer_regions.h"

#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace pelton {
namespace {

// A connection whose peers are counted. Threads: one. Owns: the regions.
struct CountingRegions {
  int told = 0;
  int forgotten = 0;
  TrainerRegions regions{{[this](const Region&) {
                            ++told;
                            return absl::OkStatus();
                          },
                          [this](RegionId) { ++forgotten; }}};
};

std::vector<Descriptor> DescriptorsOf(const Region& region) {
  std::vector<Descriptor> descriptors;
  descriptors.emplace_back(DescriptorOf(region.id()).value());
  return descriptors;
}

TEST(TrainerRegionsTest, APlaceOfTheTrainersIsOneOfTheDaemons) {
  CountingRegions counting;
  auto region = Region::Create(8192, "test").value();
  ASSERT_TRUE(counting.regions.Enter(RegionId(77), DescriptorsOf(*region)).ok());
  region->data()[100] = std::byte{5};
  const auto place = counting.regions.PlaceOf({RegionId(77), 100}, 50, "source");
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(*Resolve(place->location, 50).value(), std::byte{5});
  EXPECT_GE(place->region->descriptor(), 0) << "peers map it";
  EXPECT_EQ(counting.told, 1);
}

TEST(TrainerRegionsTest, PlacesOutsideAreRefusedByName) {
  CountingRegions counting;
  auto region = Region::Create(8192, "test").value();
  ASSERT_TRUE(counting.regions.Enter(RegionId(77), DescriptorsOf(*region)).ok());
  for (const Location outside : {Location{RegionId(77), 8192}, Location{RegionId(77), ~0ULL},
                                 Location{RegionId(76), 0}, Location{kPrivateRegion, 0}}) {
    const absl::Status refused = counting.regions.PlaceOf(outside, 1, "target").status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_EQ(refused.message().find("target: "), 0u) << refused;
  }
}

TEST(TrainerRegionsTest, ConnectionsShareOneRegionAndEachTellsItsPeers) {
  CountingRegions first;
  CountingRegions second;
  auto region = Region::Create(4096, "test").value();
  ASSERT_TRUE(first.regions.Enter(RegionId(1), DescriptorsOf(*region)).ok());
  ASSERT_TRUE(second.regions.Enter(RegionId(1), DescriptorsOf(*region)).ok());
  EXPECT_EQ(first.regions.Find(RegionId(1)).get(), second.regions.Find(RegionId(1)).get());
  EXPECT_EQ(second.told, 1);
  first.regions.Erase(RegionId(1));
  EXPECT_EQ(first.forgotten, 1);
  EXPECT_EQ(second.forgotten, 0);
  EXPECT_NE(second.regions.Find(RegionId(1)), nullptr);
}

TEST(TrainerRegionsTest, PeersForgetARegionAfterItsLastOperation) {
  CountingRegions counting;
  auto region = Region::Create(4096, "test").value();
  ASSERT_TRUE(counting.regions.Enter(RegionId(1), DescriptorsOf(*region)).ok());
  auto place = counting.regions.PlaceOf({RegionId(1), 0}, 8, "source");
  counting.regions.Erase(RegionId(1));
  EXPECT_EQ(counting.forgotten, 0);
  EXPECT_TRUE(Resolve(place->location, 8).ok());
  place->region.reset();
  EXPECT_EQ(counting.forgotten, 1);
}

TEST(TrainerRegionsTest, ANumberStaysWithItsMemory) {
  CountingRegions counting;
  auto region = Region::Create(4096, "test").value();
  auto other = Region::Create(4096, "other").value();
  ASSERT_TRUE(counting.regions.Enter(RegionId(1), DescriptorsOf(*region)).ok());
  EXPECT_TRUE(counting.regions.Enter(RegionId(1), DescriptorsOf(*region)).ok());
  const absl::Status refused = counting.regions.Enter(RegionId(1), DescriptorsOf(*other));
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(counting.told, 1);
}

TEST(TrainerRegionsTest, WhatIsNoSharedMemoryIsRefused) {
  CountingRegions counting;
  EXPECT_TRUE(absl::IsInvalidArgument(counting.regions.Enter(RegionId(1), {})));
  std::vector<Descriptor> unsealed;
  unsealed.emplace_back(memfd_create("test", MFD_CLOEXEC));
  EXPECT_TRUE(absl::IsInvalidArgument(counting.regions.Enter(RegionId(1), unsealed)));
  EXPECT_EQ(counting.told, 0);
}

// What the trainer writes afterwards does not reach this process any more.
TEST(TrainerRegionsTest, ARegionThatWasTakenBackIsNotUsed) {
  CountingRegions counting;
  auto region = Region::Create(4096, "test").value();
  ASSERT_TRUE(counting.regions.Enter(RegionId(1), DescriptorsOf(*region)).ok());
  EXPECT_FALSE(counting.regions.IsAnyUnshared());
  ASSERT_TRUE(Unshare(counting.regions.Find(RegionId(1))->id()).ok());
  EXPECT_TRUE(counting.regions.IsAnyUnshared());
  const absl::Status refused = counting.regions.PlaceOf({RegionId(1), 0}, 8, "source").status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
}

}  // namespace
}  // namespace pelton
