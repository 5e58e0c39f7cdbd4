// The job's keys as PyTorch's store has them, with a backend of each rank.
#include "torch_bindings/csrc/c10d/store.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_backends.h"

namespace pelton::torch_bindings {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Bytes = CoordinatorStore::Bytes;
using Keys = CoordinatorStore::Strings;

Bytes Of(const std::string& text) { return {text.begin(), text.end()}; }
std::string Text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

void OnStores(int world_size, const std::function<void(CoordinatorStore& store, int rank)>& body) {
  OnRanks(world_size, [&](const std::shared_ptr<Backend>& backend) {
    CoordinatorStore store(backend, milliseconds(20'000));
    body(store, backend->rank().value());
  });
}

// The text of the exception of type `Error` that `body` throws.
template <typename Error>
std::string ThrownBy(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

TEST(CoordinatorStoreTest, AGetWaitsForAnotherRanksSet) {
  OnStores(2, [](CoordinatorStore& store, int rank) {
    if (rank == 1) store.set("key", Of(std::string("\0value\xff", 7)));
    EXPECT_EQ(Text(store.get("key")), std::string("\0value\xff", 7));
  });
}

TEST(CoordinatorStoreTest, AKeyIsChangedOnlyIfItIsWhatWasExpected) {
  OnStores(1, [](CoordinatorStore& store, int) {
    EXPECT_EQ(Text(store.compareSet("key", Of("old"), Of("new"))), "old") << "there is no key";
    EXPECT_FALSE(store.check({"key"}));
    EXPECT_EQ(Text(store.compareSet("key", Of(""), Of("new"))), "new");
    EXPECT_EQ(Text(store.compareSet("key", Of("old"), Of("newer"))), "new");
    EXPECT_EQ(Text(store.compareSet("key", Of("new"), Of("newer"))), "newer");
    EXPECT_EQ(Text(store.get("key")), "newer");
  });
}

TEST(CoordinatorStoreTest, ValuesThatAreTooLargeForOneRequestAreRefused) {
  OnStores(1, [](CoordinatorStore& store, int) {
    const Bytes half(limits::kMaxValueBytes / 2 + 1);
    EXPECT_THAT(ErrorOf([&] { store.compareSet("key", half, half); }),
                HasSubstr("INVALID_ARGUMENT: compare_set of key 'key': the two values have "));
  });
}

TEST(CoordinatorStoreTest, CountsAreAddedUpAndKeysAreCountedAndDeleted) {
  OnStores(2, [](CoordinatorStore& store, int rank) {
    store.add("sum", rank + 5);
    store.set(absl::StrCat("done", rank), Of("1"));
    store.wait({"done0", "done1"});
    EXPECT_EQ(store.add("sum", 0), 11);
    store.set(absl::StrCat("read", rank), Of("1"));
    if (rank == 1) return;
    store.wait({"read1"});
    const int64_t before = store.getNumKeys();
    EXPECT_TRUE(store.deleteKey("sum"));
    EXPECT_FALSE(store.deleteKey("sum"));
    EXPECT_EQ(store.getNumKeys(), before - 1);
  });
}

TEST(CoordinatorStoreTest, AppendsGoToTheEndAndSeveralKeysKeepTheirOrder) {
  OnStores(1, [](CoordinatorStore& store, int) {
    store.append("a", Of("x"));
    store.append("a", Of("yz"));
    store.multiSet({"b", "c"}, {Of("1"), Of("2")});
    const std::vector<Bytes> values = store.multiGet({"c", "a", "b"});
    ASSERT_EQ(values.size(), 3U);
    EXPECT_EQ(Text(values[0]), "2");
    EXPECT_EQ(Text(values[1]), "xyz");
    EXPECT_EQ(Text(values[2]), "1");
    EXPECT_EQ(ErrorOf([&] {
                store.multiSet({"b", "c"}, {Of("1")});
              }),
              "INVALID_ARGUMENT: multi_set: 2 keys, but 1 values");
    EXPECT_TRUE(store.hasExtendedApi());
  });
}

TEST(CoordinatorStoreTest, MoreKeysThanARequestNamesAreAllLookedAt) {
  OnStores(1, [](CoordinatorStore& store, int) {
    Keys keys;
    for (size_t i = 0; i < limits::kMaxKeysPerRequest + 2; ++i) {
      keys.push_back(absl::StrCat("key", i));
      if (i != 0 && i != limits::kMaxKeysPerRequest) store.set(keys.back(), Of("1"));
    }
    EXPECT_FALSE(store.check(keys));
    store.set(keys.front(), Of("1"));
    EXPECT_FALSE(store.check(keys)) << "one of the second request is missing";
    EXPECT_THAT(ThrownBy<c10::DistStoreError>([&] { store.wait(keys, milliseconds(20)); }),
                HasSubstr(keys[limits::kMaxKeysPerRequest]));
    store.set(keys[limits::kMaxKeysPerRequest], Of("1"));
    EXPECT_TRUE(store.check(keys));
    store.wait(keys, milliseconds(20'000));
  });
}

TEST(CoordinatorStoreTest, AWaitEndsAtItsTimeoutAndNamesTheKey) {
  OnStores(1, [](CoordinatorStore& store, int) {
    EXPECT_THAT(ThrownBy<c10::DistStoreError>([&] { store.wait({"never"}, milliseconds(20)); }),
                HasSubstr("never"));
    store.setTimeout(milliseconds(20));
    EXPECT_THAT(ThrownBy<c10::DistStoreError>([&] { store.get("never"); }), HasSubstr("never"));
    EXPECT_THAT(ThrownBy<c10::DistStoreError>([&] { store.multiGet({"never"}); }),
                HasSubstr("never"));
  });
}

TEST(CoordinatorStoreTest, ACloneSeesTheSameKeysUnderTheSameTimeout) {
  OnStores(1, [](CoordinatorStore& store, int) {
    store.setTimeout(milliseconds(20));
    const auto clone = store.clone();
    store.set("key", Of("value"));
    EXPECT_EQ(Text(clone->get("key")), "value");
    EXPECT_EQ(clone->getTimeout(), milliseconds(20));
  });
}

}  // namespace
}  // namespace pelton::torch_bindings
