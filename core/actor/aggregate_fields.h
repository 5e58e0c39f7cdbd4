// Reflection over the fields of an aggregate: how many there are and of what types.
#ifndef PELTON_CORE_ACTOR_AGGREGATE_FIELDS_H_
#define PELTON_CORE_ACTOR_AGGREGATE_FIELDS_H_

#include <cstddef>
#include <cstdlib>
#include <type_traits>
#include <utility>

namespace pelton::internal {

template <typename... T>
struct TypeList {};

// Converts to whatever a field of `T` may be, but not to `T` itself (that would be a copy).
template <typename T>
struct AnyField {
  template <typename U>
  requires(!std::is_same_v<std::remove_cvref_t<U>, T>) operator U()
      const noexcept {  // NOLINT: implicit on purpose; never called
    std::abort();
  }
};

// Converts to classes only, so not to an element of an array of numbers.
template <typename T>
struct AnyClassField {
  template <typename U>
  requires(std::is_class_v<U> && !std::is_same_v<U, T>) operator U()
      const noexcept {  // NOLINT: implicit on purpose; never called
    std::abort();
  }
};

// Converts to the base classes of `T` only.
template <typename T>
struct AnyBase {
  template <typename U>
  requires(std::is_base_of_v<U, T> && !std::is_same_v<U, T>) operator U()
      const noexcept {  // NOLINT: implicit on purpose; never called
    std::abort();
  }
};

template <typename T, size_t>
using AnyFieldAt = AnyField<T>;

// Converts to lvalues, which only reference fields need.
template <typename T>
struct AnyReferenceField {
  template <typename U>
  operator U&() const noexcept {  // NOLINT: implicit on purpose; never called
    std::abort();
  }
};

inline constexpr size_t kMaxFields = 24;

template <typename T, size_t... I>
constexpr bool InitializableBy(std::index_sequence<I...>) {
  return requires { T{AnyFieldAt<T, I>{}...}; };
}

// The most initializers that `T{...}` takes: its number of fields, unless one is a C array.
template <typename T, size_t kCount = kMaxFields + 1>
constexpr size_t InitializerCount() {
  if constexpr (kCount == 0) {
    return 0;
  } else if constexpr (InitializableBy<T>(std::make_index_sequence<kCount>{})) {
    return kCount;
  } else {
    return InitializerCount<T, kCount - 1>();
  }
}

// T{any x before, {any x inside}, any x after}.
template <typename T, size_t... Before, size_t... Inside, size_t... After>
constexpr bool NestedInitializable(std::index_sequence<Before...>, std::index_sequence<Inside...>,
                                   std::index_sequence<After...>) {
  return requires {
    T{AnyFieldAt<T, Before>{}..., {AnyFieldAt<T, Inside>{}...}, AnyFieldAt<T, After>{}...};
  };
}
template <typename T, size_t kBefore, size_t kInside, size_t kAfter>
constexpr bool Nested() {
  return NestedInitializable<T>(std::make_index_sequence<kBefore>{},
                                std::make_index_sequence<kInside>{},
                                std::make_index_sequence<kAfter>{});
}

template <typename T, size_t... Before>
constexpr bool ClassInitializable(std::index_sequence<Before...>) {
  return requires { T{AnyFieldAt<T, Before>{}..., AnyClassField<T>{}}; };
}

// Whether the field at `kPosition`, before which none is an array, takes several initializers: a
// nested aggregate takes them in braces only, an array uses up some of the outer ones as well.
template <typename T, size_t kPosition, size_t kCount, size_t kSize = 2>
constexpr bool IsArrayAt() {
  if constexpr (kPosition + kSize > kCount) {
    return false;
  } else if constexpr (!Nested<T, kPosition, kSize, 0>()) {
    return false;
  } else if constexpr (!ClassInitializable<T>(std::make_index_sequence<kPosition>{})) {
    return true;
  } else if constexpr (Nested<T, kPosition, kSize, kCount - kPosition - kSize>() &&
                       !Nested<T, kPosition, kSize, kCount - kPosition - 1>()) {
    return true;
  } else {
    return IsArrayAt<T, kPosition, kCount, kSize + 1>();
  }
}

inline constexpr int kNoField = -1;

// Position of the first field that is a C array of two or more elements, or kNoField.
template <typename T, size_t kPosition = 0>
constexpr int FirstArray() {
  constexpr size_t kCount = InitializerCount<T>();
  if constexpr (kPosition >= kCount) {
    return kNoField;
  } else if constexpr (IsArrayAt<T, kPosition, kCount>()) {
    return static_cast<int>(kPosition);
  } else {
    return FirstArray<T, kPosition + 1>();
  }
}

template <typename T, size_t... Before>
constexpr bool ReferenceInitializable(std::index_sequence<Before...>) {
  return requires { T{AnyFieldAt<T, Before>{}..., AnyReferenceField<T>{}}; };
}

// Whether a field keeps `T{...}` from being counted: a reference, or a class that cannot be moved.
template <typename T>
constexpr bool IsUncountable() {
  return !std::is_empty_v<T> && InitializerCount<T>() == 0;
}

// Position of the reference of a `T` that has one, else kNoField.
template <typename T, size_t kPosition = 0>
constexpr int FirstReference() {
  if constexpr (kPosition >= kMaxFields) {
    return kNoField;
  } else if constexpr (ReferenceInitializable<T>(std::make_index_sequence<kPosition>{})) {
    return static_cast<int>(kPosition);
  } else {
    return FirstReference<T, kPosition + 1>();
  }
}

template <typename T>
constexpr bool HasBaseClass() {
  return requires { T{AnyBase<T>{}}; };
}

// The declared types of the fields of `T`: an aggregate without bases, without C arrays of two or
// more elements and with at most kMaxFields fields. Never executed. Long because a structured
// binding spells out its names: one branch per number of fields.
template <typename T>
constexpr auto FieldTypes(T& aggregate) {
  constexpr size_t kCount = InitializerCount<T>();
  if constexpr (kCount == 0) {
    return TypeList<>{};
  } else if constexpr (kCount == 1) {
    auto& [f0] = aggregate;
    return TypeList<decltype(f0)>{};
  } else if constexpr (kCount == 2) {
    auto& [f0, f1] = aggregate;
    return TypeList<decltype(f0), decltype(f1)>{};
  } else if constexpr (kCount == 3) {
    auto& [f0, f1, f2] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2)>{};
  } else if constexpr (kCount == 4) {
    auto& [f0, f1, f2, f3] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3)>{};
  } else if constexpr (kCount == 5) {
    auto& [f0, f1, f2, f3, f4] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4)>{};
  } else if constexpr (kCount == 6) {
    auto& [f0, f1, f2, f3, f4, f5] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5)>{};
  } else if constexpr (kCount == 7) {
    auto& [f0, f1, f2, f3, f4, f5, f6] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6)>{};
  } else if constexpr (kCount == 8) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7)>{};
  } else if constexpr (kCount == 9) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8)>{};
  } else if constexpr (kCount == 10) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9)>{};
  } else if constexpr (kCount == 11) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10)>{};
  } else if constexpr (kCount == 12) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11)>{};
  } else if constexpr (kCount == 13) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12)>{};
  } else if constexpr (kCount == 14) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13)>{};
  } else if constexpr (kCount == 15) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14)>{};
  } else if constexpr (kCount == 16) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15)>{};
  } else if constexpr (kCount == 17) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16)>{};
  } else if constexpr (kCount == 18) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17] =
        aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16), decltype(f17)>{};
  } else if constexpr (kCount == 19) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18] =
        aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16), decltype(f17), decltype(f18)>{};
  } else if constexpr (kCount == 20) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
           f19] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16), decltype(f17), decltype(f18), decltype(f19)>{};
  } else if constexpr (kCount == 21) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
           f20] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16), decltype(f17), decltype(f18), decltype(f19),
                    decltype(f20)>{};
  } else if constexpr (kCount == 22) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
           f20, f21] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16), decltype(f17), decltype(f18), decltype(f19),
                    decltype(f20), decltype(f21)>{};
  } else if constexpr (kCount == 23) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
           f20, f21, f22] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16), decltype(f17), decltype(f18), decltype(f19),
                    decltype(f20), decltype(f21), decltype(f22)>{};
  } else if constexpr (kCount == 24) {
    auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
           f20, f21, f22, f23] = aggregate;
    return TypeList<decltype(f0), decltype(f1), decltype(f2), decltype(f3), decltype(f4),
                    decltype(f5), decltype(f6), decltype(f7), decltype(f8), decltype(f9),
                    decltype(f10), decltype(f11), decltype(f12), decltype(f13), decltype(f14),
                    decltype(f15), decltype(f16), decltype(f17), decltype(f18), decltype(f19),
                    decltype(f20), decltype(f21), decltype(f22), decltype(f23)>{};
  }
}

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_AGGREGATE_FIELDS_H_
