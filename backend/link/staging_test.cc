#include "backend/link/staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/base/status.h"

namespace pelton {
namespace {

// A pool that counts what it tells of.
struct CountingPool {
  int announced = 0;
  int withdrawn = 0;
  StagingPool pool{[this](const Region&) {
                     ++announced;
                     return absl::OkStatus();
                   },
                   [this](RegionId) { ++withdrawn; }};
};

OperationPlaces PlacesOf(std::vector<float>& source, std::vector<float>& target) {
  OperationPlaces places;
  places.source = reinterpret_cast<std::byte*>(source.data());
  places.target = reinterpret_cast<std::byte*>(target.data());
  places.extent = {source.size() * sizeof(float), target.size() * sizeof(float)};
  return places;
}

// What the daemon would see.
float* At(Location location, size_t size_bytes) {
  const absl::StatusOr<std::byte*> address = Resolve(location, size_bytes);
  EXPECT_TRUE(address.ok()) << address.status();
  return reinterpret_cast<float*>(*address);
}

TEST(StagingTest, TheSourceIsReadAndTheTargetWritten) {
  CountingPool counting;
  std::vector<float> source = {1, 2, 3};
  std::vector<float> target = {0, 0};
  Operation record;
  StagedOperation staged;
  ASSERT_TRUE(CopyIntoStaging(PlacesOf(source, target), counting.pool, &record, &staged).ok());
  const float* const copy = At(record.source(), 12);
  EXPECT_EQ(copy[2], 3);
  float* const result = At(record.target(), 8);
  result[1] = 7;
  EXPECT_EQ(target[1], 0);
  ASSERT_TRUE(CopyOutOfStaging(staged, counting.pool, absl::OkStatus()).ok());
  EXPECT_EQ(target[1], 7);
}

TEST(StagingTest, InPlaceStaysInPlace) {
  CountingPool counting;
  std::vector<float> tensor = {1, 2, 3, 4};
  OperationPlaces places = PlacesOf(tensor, tensor);
  // The source is the second half of the target, as of an all-gather in place.
  places.source += 8;
  places.extent.source_bytes = 8;
  Operation record;
  StagedOperation staged;
  ASSERT_TRUE(CopyIntoStaging(places, counting.pool, &record, &staged).ok());
  EXPECT_EQ(counting.announced, 1);
  float* const result = At(record.target(), 16);
  EXPECT_EQ(At(record.source(), 8), result + 2);
  EXPECT_EQ(result[3], 4);
  result[0] = 9;
  ASSERT_TRUE(CopyOutOfStaging(staged, counting.pool, absl::OkStatus()).ok());
  EXPECT_EQ(tensor[0], 9);
  EXPECT_EQ(tensor[3], 4);
}

TEST(StagingTest, ACopyLiesInItsCacheLineAsTheOriginalDoes) {
  CountingPool counting;
  std::vector<float> memory(64);
  std::vector<float> none;
  for (int lead = 0; lead < 16; ++lead) {
    OperationPlaces places = PlacesOf(memory, none);
    places.source += lead * 4;
    places.extent = {16, 0};
    Operation record;
    StagedOperation staged;
    ASSERT_TRUE(CopyIntoStaging(places, counting.pool, &record, &staged).ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(At(record.source(), 16)) % 64,
              reinterpret_cast<uintptr_t>(places.source) % 64);
    ASSERT_TRUE(CopyOutOfStaging(staged, counting.pool, absl::OkStatus()).ok());
  }
}

TEST(StagingTest, AFailedOperationLeavesTheTargetAlone) {
  CountingPool counting;
  std::vector<float> source = {1};
  std::vector<float> target = {5};
  Operation record;
  StagedOperation staged;
  ASSERT_TRUE(CopyIntoStaging(PlacesOf(source, target), counting.pool, &record, &staged).ok());
  *At(record.target(), 4) = 8;
  const absl::Status failed = absl::AbortedError("peer");
  EXPECT_EQ(CopyOutOfStaging(staged, counting.pool, failed), failed);
  EXPECT_EQ(target[0], 5);
}

TEST(StagingTest, WhatTheDaemonReachesIsNotCopied) {
  CountingPool counting;
  std::vector<float> source = {1};
  std::vector<float> target = {2};
  OperationPlaces places = PlacesOf(source, target);
  places.source_is_direct = places.target_is_direct = true;
  Operation record;
  record.target_region = RegionId(77);
  StagedOperation staged;
  ASSERT_TRUE(CopyIntoStaging(places, counting.pool, &record, &staged).ok());
  EXPECT_EQ(counting.announced, 0);
  EXPECT_EQ(record.target_region, RegionId(77));
}

TEST(StagingTest, ATargetThatWasTakenBackMeanwhileFails) {
  CountingPool counting;
  auto region = Region::Create(4096, "test");
  ASSERT_TRUE(region.ok());
  std::vector<float> source = {1};
  OperationPlaces places = PlacesOf(source, source);
  places.target = (*region)->data();
  places.target_is_direct = true;
  Operation record;
  record.set_target(Locate((*region)->data(), 4));
  StagedOperation staged;
  ASSERT_TRUE(CopyIntoStaging(places, counting.pool, &record, &staged).ok());
  ASSERT_TRUE(Unshare((*region)->id()).ok());
  const absl::Status status = CopyOutOfStaging(staged, counting.pool, absl::OkStatus());
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST(StagingTest, RegionsAreUsedAgainAndSurplusIsWithdrawn) {
  CountingPool counting;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Region>> taken;
    for (int i = 0; i < 6; ++i) taken.push_back(*counting.pool.Take(5000));
    for (auto& region : taken) counting.pool.GiveBack(std::move(region));
  }
  EXPECT_EQ(counting.announced, 6 + 2 * 2);
  EXPECT_EQ(counting.withdrawn, 3 * 2);
}

TEST(StagingTest, AnAnnouncementThatFailsIsTheLaunchsError) {
  StagingPool pool([](const Region&) { return absl::UnavailableError("gone"); }, [](RegionId) {});
  std::vector<float> source = {1};
  std::vector<float> target = {2};
  Operation record;
  StagedOperation staged;
  EXPECT_TRUE(
      absl::IsUnavailable(CopyIntoStaging(PlacesOf(source, target), pool, &record, &staged)));
  EXPECT_TRUE(staged.regions.empty());
}

}  // namespace
}  // namespace pelton
