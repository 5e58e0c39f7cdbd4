#include "backend/link/shared_places.h"

#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace pelton {
namespace {

// Two slots, and what the daemon has been told of. Threads: one. Owns: the places.
struct Counted {
  std::vector<RegionId> told;
  absl::Status answer;
  SharedPlaces places{2, [this](RegionId region, int descriptor) {
                        EXPECT_GE(descriptor, 0);
                        told.push_back(region);
                        return answer;
                      }};
};

constexpr SlotId kFirst{0};
constexpr SlotId kSecond{1};

TEST(SharedPlacesTest, SharedMemoryIsToldOfOnceAndReachedWhereItLies) {
  Counted counted;
  auto region = Region::Create(8192, "test").value();
  for (int round = 0; round < 3; ++round) {
    std::byte* const place = region->data() + 64 * round;
    EXPECT_EQ(counted.places.Reach(kFirst, place, 64).value(), place);
    EXPECT_EQ(counted.places.Reach(kSecond, place + 4096, 64).value(), place + 4096);
  }
  EXPECT_EQ(counted.told, std::vector<RegionId>{region->id()});
  EXPECT_EQ(counted.places.OriginalOf(kFirst), nullptr);
}

TEST(SharedPlacesTest, PrivateMemoryIsCopiedThereAndBack) {
  Counted counted;
  std::byte tensor[64] = {std::byte{1}};
  std::byte* const copy = counted.places.Reach(kFirst, tensor, sizeof tensor).value();
  EXPECT_NE(copy, tensor);
  EXPECT_EQ(counted.told, std::vector<RegionId>{Locate(copy, sizeof tensor).region});
  EXPECT_EQ(counted.places.OriginalOf(kFirst), tensor);
  EXPECT_EQ(copy[0], std::byte{1});
  copy[0] = std::byte{2};
  counted.places.BringBack();
  EXPECT_EQ(tensor[0], std::byte{2});
  EXPECT_EQ(counted.places.Reach(kFirst, tensor, sizeof tensor).value(), copy) << "used again";
  EXPECT_EQ(counted.told.size(), 1u);
}

TEST(SharedPlacesTest, MemoryThatIsOnlyAdoptedCountsAsPrivate) {
  Counted counted;
  std::byte memory[64];
  auto region = Region::Adopt(memory, sizeof memory, "a device's");
  EXPECT_NE(counted.places.Reach(kFirst, memory, sizeof memory).value(), memory);
}

TEST(SharedPlacesTest, ASlotWithoutElementsIsZerosAndNothingIsBroughtBack) {
  Counted counted;
  std::byte tensor[64] = {std::byte{1}};
  std::byte* const copy = counted.places.Reach(kFirst, tensor, sizeof tensor).value();
  EXPECT_EQ(counted.places.Zeros(kFirst, sizeof tensor).value(), copy);
  EXPECT_EQ(copy[0], std::byte{0});
  copy[0] = std::byte{5};
  counted.places.BringBack();
  EXPECT_EQ(tensor[0], std::byte{1});
}

TEST(SharedPlacesTest, WhatWasTakenBackIsCopiedFromThenOn) {
  Counted counted;
  auto region = Region::Create(4096, "test").value();
  EXPECT_EQ(counted.places.Reach(kFirst, region->data(), 64).value(), region->data());
  counted.places.TakeBack();
  EXPECT_TRUE(IsUnshared(region->id()));
  std::byte* const copy = counted.places.Reach(kFirst, region->data(), 64).value();
  EXPECT_NE(copy, region->data());
  EXPECT_FALSE(IsUnshared(Locate(copy, 64).region));
}

TEST(SharedPlacesTest, ADaemonThatIsGoneIsTheMarksError) {
  Counted counted;
  counted.answer = absl::UnavailableError("gone");
  auto region = Region::Create(4096, "test").value();
  EXPECT_TRUE(absl::IsUnavailable(counted.places.Reach(kFirst, region->data(), 64).status()));
  counted.answer = absl::OkStatus();
  EXPECT_TRUE(counted.places.Reach(kFirst, region->data(), 64).ok()) << "told at the next attempt";
}

}  // namespace
}  // namespace pelton
