#include "core/actor/sendable.h"

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "gtest/gtest.h"

namespace pelton {
namespace {

enum class Color { kRed };
struct Empty {};
struct Inner {
  int a;
  std::string b;
};
struct Everything {
  bool flag;
  double number;
  Color color;
  Rank rank;
  std::string text;
  std::vector<std::string> list;
  std::array<float, 4> floats;
  std::optional<std::string> maybe;
  std::variant<int, std::string> either;
  std::unique_ptr<Inner> owned;
  absl::Status status;
  absl::StatusOr<Inner> result;
  absl::Time time;
  absl::Duration duration;
  absl::InlinedVector<int, 2> few;
  absl::flat_hash_map<std::string, Inner> map;
  Inner inner;
  std::array<Inner, 2> pair_of_inner;
  std::unique_ptr<float[]> floats_owned;
  std::optional<Inner> maybe_inner;
};

class Lease {
 public:
  explicit Lease(int id) : id_(id) {}
  int id() const { return id_; }

 private:
  int id_;
};
class Unlisted {
 public:
  explicit Unlisted(int) {}
};

}  // namespace

template <>
inline constexpr bool kSendableType<Lease> = true;

namespace {

struct WithLease {
  std::unique_ptr<Lease> lease;
  std::vector<Lease> leases;
};
struct OneArray {
  int x;
  int y[1];
};
struct Array {
  int x;
  char name[16];
  int z;
};
struct ArrayOfClass {
  Inner first;
  std::string names[3];
};
struct NestedThenArray {
  Inner inner;
  Inner second;
  float values[2];
};
struct Base {
  int x;
};
struct Derived : Base {
  int y;
};
struct EmptyDerived : Empty {
  int y;
};
struct Pointer {
  int a;
  int b;
  int* p;
};
struct Reference {
  int& r;
};
struct LaterReference {
  int a;
  std::string b;
  const Inner& r;
};
struct View {
  Inner inner;
  std::string_view view;
};
struct Deep {
  std::vector<std::optional<Pointer>> pointers;
};
struct Function {
  std::function<void()> f;
};
struct Shared {
  std::shared_ptr<int> p;
};
struct SpanField {
  std::span<int> s;
};
struct MemberPointer {
  int Inner::*p;
};
template <typename T>
struct Of {
  T value;
};

static_assert(Message<Empty>);
static_assert(Message<Inner>);
static_assert(Message<Everything>);
static_assert(Message<WithLease>);
static_assert(internal::InitializerCount<Everything>() == 20);
static_assert(!Message<int>);
static_assert(!Message<std::string>);
static_assert(!Sendable<Array>);
static_assert(!Sendable<OneArray>);
static_assert(!Sendable<ArrayOfClass>);
static_assert(!Sendable<NestedThenArray>);
static_assert(!Sendable<Derived>);
static_assert(!Sendable<EmptyDerived>);
static_assert(!Sendable<Pointer>);
static_assert(!Sendable<Reference>);
static_assert(!Sendable<LaterReference>);
static_assert(!Sendable<View>);
static_assert(!Sendable<Deep>);
static_assert(!Sendable<Function>);
static_assert(!Sendable<Shared>);
static_assert(!Sendable<SpanField>);
static_assert(!Sendable<MemberPointer>);
static_assert(!Sendable<Of<Unlisted>>);
static_assert(!Sendable<Of<std::unique_ptr<int*>>>);
static_assert(!Sendable<int*>);
static_assert(!Sendable<const char*>);
static_assert(!Sendable<std::string_view>);
static_assert(!Sendable<void (*)()>);
static_assert(Sendable<Of<const int>>);

constexpr auto kLambda = [] {};
static_assert(!Sendable<decltype(kLambda)>);
static_assert(!Sendable<Of<std::remove_const_t<decltype(kLambda)>>>);

TEST(SendableTest, NamesThePositionOfTheFirstFieldThatMayNotTravel) {
  EXPECT_EQ(internal::FirstRejectedField<Pointer>(), 2);
  EXPECT_EQ(internal::FirstRejectedField<Reference>(), 0);
  EXPECT_EQ(internal::FirstRejectedField<LaterReference>(), 2);
  EXPECT_EQ(internal::FirstRejectedField<View>(), 1);
  EXPECT_EQ(internal::FirstRejectedField<Array>(), 1);
  EXPECT_EQ(internal::FirstRejectedField<OneArray>(), 1);
  EXPECT_EQ(internal::FirstRejectedField<ArrayOfClass>(), 1);
  EXPECT_EQ(internal::FirstRejectedField<NestedThenArray>(), 2);
  EXPECT_EQ(internal::FirstRejectedField<Everything>(), internal::kNoField);
}

TEST(SendableTest, TellsBaseClassesAndArraysApart) {
  EXPECT_EQ(internal::FlawOf<Derived>(), internal::AggregateFlaw::kBaseClass);
  EXPECT_EQ(internal::FlawOf<EmptyDerived>(), internal::AggregateFlaw::kBaseClass);
  EXPECT_EQ(internal::FlawOf<ArrayOfClass>(), internal::AggregateFlaw::kArray);
  EXPECT_EQ(internal::FlawOf<Everything>(), internal::AggregateFlaw::kNone);
}

}  // namespace
}  // namespace pelton
