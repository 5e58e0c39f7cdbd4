// Sendable: the types that may travel in a message, decided at compile time.
#ifndef PELTON_CORE_ACTOR_SENDABLE_H_
#define PELTON_CORE_ACTOR_SENDABLE_H_

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/aggregate_fields.h"
#include "core/base/ids.h"

namespace pelton {

// The way for a class that owns what it holds, and is no aggregate, to become sendable:
//   template <> inline constexpr bool kSendableType<Lease> = true;
template <typename T>
inline constexpr bool kSendableType = false;

namespace internal {

template <typename T>
constexpr bool IsSendable();

// What is wrong with an aggregate as a whole; kNone leaves its fields to be judged.
enum class AggregateFlaw { kNone, kNotAggregate, kBaseClass, kArray, kUncountable, kTooManyFields };

template <typename T>
constexpr AggregateFlaw FlawOf() {
  if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T>) {
    return AggregateFlaw::kNotAggregate;
  } else if constexpr (HasBaseClass<T>()) {
    return AggregateFlaw::kBaseClass;
  } else if constexpr (IsUncountable<T>()) {
    return AggregateFlaw::kUncountable;
  } else if constexpr (FirstArray<T>() != kNoField) {
    return AggregateFlaw::kArray;
  } else if constexpr (InitializerCount<T>() > kMaxFields) {
    return AggregateFlaw::kTooManyFields;
  } else {
    return AggregateFlaw::kNone;
  }
}

template <typename... Field>
constexpr int FirstRejected(TypeList<Field...>) {
  int position = 0;
  int rejected = kNoField;
  ((rejected == kNoField && !IsSendable<Field>() ? rejected = position : ++position), ...);
  return rejected;
}

// Position of the first field of `T` that may not travel, or kNoField.
template <typename T>
constexpr int FirstRejectedField() {
  if constexpr (FlawOf<T>() == AggregateFlaw::kArray) {
    return FirstArray<T>();
  } else if constexpr (FlawOf<T>() == AggregateFlaw::kUncountable) {
    return FirstReference<T>();
  } else if constexpr (FlawOf<T>() == AggregateFlaw::kNone) {
    return FirstRejected(decltype(FieldTypes(std::declval<T&>())){});
  } else {
    return kNoField;
  }
}

// The allow-list. A class that is on no line here is judged by its fields if it is an aggregate and
// rejected otherwise: string_view, spans, shared_ptr, functions and lambdas are.
template <typename T>
struct SendableRule {
  static constexpr bool Allows() {
    return FlawOf<T>() == AggregateFlaw::kNone && FirstRejectedField<T>() == kNoField;
  }
};
template <typename T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T> || kSendableType<T>) struct SendableRule<T>
    : std::true_type {
  static constexpr bool Allows() { return true; }
};
template <typename... Part>
struct SendableParts {
  static constexpr bool Allows() { return (IsSendable<Part>() && ...); }
};
template <typename Tag, typename T>
struct SendableRule<Id<Tag, T>> : SendableParts<T> {};
template <>
struct SendableRule<std::string> : SendableParts<> {};
template <>
struct SendableRule<std::monostate> : SendableParts<> {};
template <>
struct SendableRule<absl::Status> : SendableParts<> {};
template <>
struct SendableRule<absl::Time> : SendableParts<> {};
template <>
struct SendableRule<absl::Duration> : SendableParts<> {};
template <typename T>
struct SendableRule<absl::StatusOr<T>> : SendableParts<T> {};
template <typename T>
struct SendableRule<std::optional<T>> : SendableParts<T> {};
template <typename T>
struct SendableRule<std::vector<T>> : SendableParts<T> {};
template <typename T, size_t kSize>
struct SendableRule<std::array<T, kSize>> : SendableParts<T> {};
template <typename T, size_t kSize>
struct SendableRule<absl::InlinedVector<T, kSize>> : SendableParts<T> {};
template <typename K, typename V>
struct SendableRule<absl::flat_hash_map<K, V>> : SendableParts<K, V> {};
template <typename... T>
struct SendableRule<std::variant<T...>> : SendableParts<T...> {};
template <typename T, typename U>
struct SendableRule<std::pair<T, U>> : SendableParts<T, U> {};
template <typename... T>
struct SendableRule<std::tuple<T...>> : SendableParts<T...> {};
template <typename T>
struct SendableRule<std::unique_ptr<T>> : SendableParts<T> {};
template <typename T>
struct SendableRule<std::unique_ptr<T[]>> : SendableParts<T> {};

template <typename T>
constexpr bool IsSendable() {
  if constexpr (std::is_reference_v<T> || std::is_pointer_v<T> || std::is_member_pointer_v<T> ||
                std::is_array_v<T> || std::is_function_v<T> || std::is_volatile_v<T>) {
    return false;
  } else {
    return SendableRule<std::remove_const_t<T>>::Allows();
  }
}

}  // namespace internal

// T owns everything it holds, as far as the compiler can see: it may be handed to another thread.
template <typename T>
concept Sendable = internal::IsSendable<T>();

// A message: a named aggregate of sendable fields.
template <typename T>
concept Message = std::is_class_v<T> && std::is_aggregate_v<T> && Sendable<T>;

namespace internal {

#define PELTON_REJECT_FIELD_(position)                                                           \
  static_assert(!kIsArray || kField != position,                                                 \
                "field " #position                                                               \
                " (counted from 0) of this message is a C array: use std::array");               \
  static_assert(kIsArray || kField != position,                                                  \
                "field " #position                                                               \
                " (counted from 0) of this message is not Sendable: a message owns its values"); \
  static_assert(true)

// Says in words why `T` is no message; compiles if it is one.
template <typename T>
constexpr bool ExplainMessage() {
  constexpr AggregateFlaw kFlaw = FlawOf<T>();
  static_assert(kFlaw != AggregateFlaw::kNotAggregate,
                "a message is an aggregate: a struct without constructors or private fields");
  static_assert(kFlaw != AggregateFlaw::kBaseClass,
                "a message has no base class (it would be its field 0): make it a field");
  static_assert(kFlaw != AggregateFlaw::kTooManyFields,
                "a message has at most 24 fields: group some of them in a struct");
  static_assert(kFlaw != AggregateFlaw::kUncountable || FirstRejectedField<T>() != kNoField,
                "a message has no references and no fields that cannot be moved");
  [[maybe_unused]] constexpr bool kIsArray = kFlaw == AggregateFlaw::kArray;
  [[maybe_unused]] constexpr int kField = FirstRejectedField<T>();
  PELTON_REJECT_FIELD_(0);
  PELTON_REJECT_FIELD_(1);
  PELTON_REJECT_FIELD_(2);
  PELTON_REJECT_FIELD_(3);
  PELTON_REJECT_FIELD_(4);
  PELTON_REJECT_FIELD_(5);
  PELTON_REJECT_FIELD_(6);
  PELTON_REJECT_FIELD_(7);
  PELTON_REJECT_FIELD_(8);
  PELTON_REJECT_FIELD_(9);
  PELTON_REJECT_FIELD_(10);
  PELTON_REJECT_FIELD_(11);
  PELTON_REJECT_FIELD_(12);
  PELTON_REJECT_FIELD_(13);
  PELTON_REJECT_FIELD_(14);
  PELTON_REJECT_FIELD_(15);
  PELTON_REJECT_FIELD_(16);
  PELTON_REJECT_FIELD_(17);
  PELTON_REJECT_FIELD_(18);
  PELTON_REJECT_FIELD_(19);
  PELTON_REJECT_FIELD_(20);
  PELTON_REJECT_FIELD_(21);
  PELTON_REJECT_FIELD_(22);
  PELTON_REJECT_FIELD_(23);
  return true;
}
#undef PELTON_REJECT_FIELD_

}  // namespace internal
}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_SENDABLE_H_
