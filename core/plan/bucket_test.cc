#include "core/plan/bucket.h"

#include <memory>
#include <string>
#include <utility>

#include "core/memory/region.h"
#include "core/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

Plan TwoTensors() {
  return *Plan::Build({{"a", DType::kFloat32, 16}, {"b", DType::kFloat32, 8}}, {});
}

TEST(BucketStorageTest, LiesOverMemoryThatIsThere) {
  const Plan plan = TwoTensors();
  const std::unique_ptr<Region> memory = *Region::Create(plan.flat_bytes(), "owner's");
  memory->data()[plan.slot(SlotId(1)).offset_bytes] = std::byte{7};
  const auto storage = *BucketStorage::CreateOver(
      plan, Region::Adopt(memory->data(), memory->size_bytes(), "mapped"));
  for (int32_t slot : {0, 1}) {
    EXPECT_EQ(storage->DataOf(SlotId(slot)), memory->data() + plan.slot(SlotId(slot)).offset_bytes);
  }
  EXPECT_EQ(*storage->DataOf(SlotId(1)), std::byte{7}) << "the bytes are as they were";
}

TEST(BucketStorageTest, RefusesTooLittleMemory) {
  const Plan plan = *Plan::Build({{"a", DType::kFloat32, 16384}}, {});
  const std::unique_ptr<Region> memory = *Region::Create(4096, "owner's");
  const absl::Status small =
      BucketStorage::CreateOver(plan, Region::Adopt(memory->data(), 4096, "mapped")).status();
  EXPECT_EQ(small.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(small.message()), ::testing::HasSubstr("the memory has 4096"));
  EXPECT_FALSE(BucketStorage::CreateOver(plan, nullptr).ok());
}

}  // namespace
}  // namespace pelton
