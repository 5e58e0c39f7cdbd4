// A counted reference to an object that counts itself.
#ifndef PELTON_CORE_ACTOR_REF_PTR_H_
#define PELTON_CORE_ACTOR_REF_PTR_H_

#include <utility>

namespace pelton::internal {

// Needs T::Ref() and T::Unref(); the count lies in the object, so a raw pointer can become a RefPtr
// again, and it is half the size of a shared_ptr.
// Threads: as T for its count; this object itself one at a time. Owns: one count.
template <typename T>
class RefPtr {
 public:
  RefPtr() = default;
  RefPtr(const RefPtr& other) : object_(other.object_) {
    if (object_ != nullptr) object_->Ref();
  }
  RefPtr(RefPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  // Two of them: clang 14 never ends the argument of one by value in `pointer = {}` of a template.
  RefPtr& operator=(const RefPtr& other) { return *this = RefPtr(other); }
  RefPtr& operator=(RefPtr&& other) noexcept {
    T* const old = std::exchange(object_, std::exchange(other.object_, nullptr));
    if (old != nullptr) old->Unref();
    return *this;
  }
  ~RefPtr() {
    if (object_ != nullptr) object_->Unref();
  }

  // Takes over a count that the caller holds.
  static RefPtr Adopt(T* object) {
    RefPtr result;
    result.object_ = object;
    return result;
  }
  // Adds a count.
  static RefPtr Share(T* object) {
    if (object != nullptr) object->Ref();
    return Adopt(object);
  }

  // Gives the count to the caller.
  T* release() { return std::exchange(object_, nullptr); }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const RefPtr&, const RefPtr&) = default;

 private:
  T* object_ = nullptr;
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_REF_PTR_H_
