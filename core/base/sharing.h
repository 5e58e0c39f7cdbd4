// What several threads share, each behind a lock of its own.
#ifndef PELTON_CORE_BASE_SHARING_H_
#define PELTON_CORE_BASE_SHARING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/sync.h"

namespace pelton {

// `reason` as that of an end. An OK would look like no end, and becomes Cancelled. What a
// communicator that goes on answers becomes Aborted: ResourceExhausted, which whoever launches
// takes for want of room, NotFound, for that there is no message, and Unimplemented.
inline absl::Status AsEnd(const absl::Status& reason) {
  if (reason.ok()) return absl::CancelledError("aborted without a reason");
  const bool has_another_meaning = absl::IsResourceExhausted(reason) || absl::IsNotFound(reason) ||
                                   absl::IsUnimplemented(reason);
  return has_another_meaning ? absl::AbortedError(reason.message()) : reason;
}

// Why something ended: the first reason that any thread gives.
// Threads that give a reason at once agree on one, and each of them finds it there when its call
// returns. The reason never changes afterwards, so that a reader takes no lock, and on the data
// path an end that has not come costs one load.
// Threads: any. Owns: the reason.
class EndReason {
 public:
  // Keeps `reason`, as AsEnd makes it, unless there is one. True: it is this one, so that the
  // caller does what follows from it.
  bool Give(const absl::Status& reason) {
    MutexLock lock(&giving_);
    if (is_given()) return false;
    reason_ = AsEnd(reason);
    is_given_.store(true);
    return true;
  }

  bool is_given() const { return is_given_.load(); }
  // OK while there is none.
  absl::Status Get() const { return is_given() ? reason_ : absl::OkStatus(); }

 private:
  Mutex giving_;
  std::atomic<bool> is_given_{false};
  absl::Status reason_;  // written once, before is_given_
};

// What a process has once, however many ask for it.
// Finds a thing by its key for as long as anybody keeps it, and makes it anew after that: two
// threads that ask at once get the same thing. Such a table is a static object that is never
// destroyed, because things may outlive every other one. A forked child must not ask it, because a
// thread that the child does not have may hold the lock (core/base/fork.h).
// Threads: any. Owns: nothing of the things.
template <typename Key, typename T>
class LiveTable {
 public:
  using Pointer = std::shared_ptr<T>;
  using Make = absl::FunctionRef<absl::StatusOr<Pointer>()>;

  // Blocks: as `make`, also while another thread makes one. Errors: those of `make`.
  absl::StatusOr<Pointer> FindOrMake(const Key& key, Make make) {
    MutexLock lock(&mutex_);
    const auto found = things_.find(key);
    if (found != things_.end()) {
      if (Pointer thing = found->second.lock()) return thing;
    }
    // Nobody tells of a thing's end: the table is no larger than twice what lived at once.
    std::erase_if(things_, [](const auto& entry) { return entry.second.expired(); });
    absl::StatusOr<Pointer> made = make();
    if (made.ok()) things_[key] = *made;
    return made;
  }

 private:
  Mutex mutex_;
  std::map<Key, std::weak_ptr<T>> things_ ABSL_GUARDED_BY(mutex_);
};

// Things that several threads enter, take back and visit.
// A transport's open communicators, for instance: whichever thread learns that a rank is gone
// aborts all of them, while others open and close some. An entry that is being visited cannot be
// taken back meanwhile, so a thread that has taken its own entry back may destroy what the entry
// names. Visitors must not call the list.
// Threads: any. Owns: the entries.
template <typename T>
class SharedList {
 public:
  // Equal entries may be there several times.
  void Add(T entry) {
    MutexLock lock(&mutex_);
    entries_.push_back(std::move(entry));
  }
  // False, and no effect: an equal one is there.
  bool AddNew(T entry) {
    MutexLock lock(&mutex_);
    if (std::find(entries_.begin(), entries_.end(), entry) != entries_.end()) return false;
    entries_.push_back(std::move(entry));
    return true;
  }
  // Takes one entry back. False: there was none. Blocks: while another thread visits.
  bool Remove(const T& entry) {
    MutexLock lock(&mutex_);
    const auto found = std::find(entries_.begin(), entries_.end(), entry);
    if (found == entries_.end()) return false;
    entries_.erase(found);
    return true;
  }
  // Takes back the one that was entered first; nothing: there is none. Blocks: as Remove.
  std::optional<T> TakeFirst() {
    MutexLock lock(&mutex_);
    if (entries_.empty()) return std::nullopt;
    std::optional<T> taken(std::move(entries_.front()));
    entries_.erase(entries_.begin());
    return taken;
  }
  // Takes back all that `is_over` says. True: none is left. Blocks: as Remove.
  bool RemoveIf(absl::FunctionRef<bool(const T&)> is_over) {
    MutexLock lock(&mutex_);
    std::erase_if(entries_, is_over);
    return entries_.empty();
  }

  // In the order of the entering; none comes or goes meanwhile. Blocks: as `visit`.
  void ForEach(absl::FunctionRef<void(const T&)> visit) const {
    MutexLock lock(&mutex_);
    for (const T& entry : entries_) visit(entry);
  }
  std::vector<T> All() const {
    MutexLock lock(&mutex_);
    return entries_;
  }
  bool Contains(const T& entry) const {
    MutexLock lock(&mutex_);
    return std::find(entries_.begin(), entries_.end(), entry) != entries_.end();
  }
  size_t size() const {
    MutexLock lock(&mutex_);
    return entries_.size();
  }

 private:
  mutable Mutex mutex_;
  std::vector<T> entries_ ABSL_GUARDED_BY(mutex_);
};

// What threads leave for another one.
// For a thread that looks for what has come in the course of other work, and sleeps on something
// else: a thread that pushes wakes it by that afterwards. A thread that only receives has an Inbox
// (inbox.h), and what has state of its own is an actor.
// Threads: any. Owns: the entries that nobody has taken.
template <typename T>
class SharedQueue {
 public:
  // `most`: entries that are there at once.
  explicit SharedQueue(size_t most = SIZE_MAX) : most_(most) {}
  SharedQueue(const SharedQueue&) = delete;
  SharedQueue& operator=(const SharedQueue&) = delete;

  // Behind the others. False, and no effect: there are as many as there may be.
  bool Push(T entry) {
    MutexLock lock(&mutex_);
    if (entries_.size() >= most_) return false;
    entries_.push_back(std::move(entry));
    return true;
  }
  // The oldest one; nothing: there is none.
  std::optional<T> Take() {
    MutexLock lock(&mutex_);
    if (entries_.empty()) return std::nullopt;
    std::optional<T> taken(std::move(entries_.front()));
    entries_.pop_front();
    return taken;
  }
  // For what is as good as any other one, and better if it has just been used.
  std::optional<T> TakeNewest() {
    MutexLock lock(&mutex_);
    if (entries_.empty()) return std::nullopt;
    std::optional<T> taken(std::move(entries_.back()));
    entries_.pop_back();
    return taken;
  }
  // All of them, the oldest first.
  std::deque<T> TakeAll() {
    std::deque<T> taken;
    MutexLock lock(&mutex_);
    taken.swap(entries_);
    return taken;
  }
  bool is_empty() const {
    MutexLock lock(&mutex_);
    return entries_.empty();
  }

 private:
  const size_t most_;
  mutable Mutex mutex_;
  std::deque<T> entries_ ABSL_GUARDED_BY(mutex_);
};

// Values by key that several threads find, enter and take back.
// What is found is a copy, so that nobody holds the lock while using it. Functions that are passed
// must not call the table. Where it stands for a whole process a forked child must not ask it,
// because a thread that the child does not have may hold the lock (core/base/fork.h).
// Threads: any. Owns: the values.
template <typename Key, typename Value, typename Order = std::less<Key>>
class SharedTable {
 public:
  std::optional<Value> Find(const Key& key) const {
    MutexLock lock(&mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional<Value>(found->second);
  }
  // Two threads that ask at once get the same value. Blocks: as `make`. Errors: those of `make`.
  absl::StatusOr<Value> FindOrMake(const Key& key,
                                   absl::FunctionRef<absl::StatusOr<Value>()> make) {
    MutexLock lock(&mutex_);
    const auto found = values_.find(key);
    if (found != values_.end()) return found->second;
    absl::StatusOr<Value> made = make();
    if (made.ok()) values_.emplace(key, *made);
    return made;
  }
  // False, and no effect: there is one under `key`, or there are `most` in all.
  bool Enter(const Key& key, Value value, size_t most = SIZE_MAX) {
    MutexLock lock(&mutex_);
    return values_.size() < most && values_.emplace(key, std::move(value)).second;
  }
  // Takes it out. What it held ends when the caller lets go of it, without the lock.
  std::optional<Value> Take(const Key& key) {
    MutexLock lock(&mutex_);
    const auto node = values_.extract(key);
    return node.empty() ? std::nullopt : std::optional<Value>(std::move(node.mapped()));
  }
  // The same with all, by key.
  std::vector<Value> TakeAll() {
    MutexLock lock(&mutex_);
    std::vector<Value> taken;
    for (auto& [key, value] : values_) taken.push_back(std::move(value));
    values_.clear();
    return taken;
  }
  // By key.
  std::vector<Value> All() const {
    MutexLock lock(&mutex_);
    std::vector<Value> all;
    for (const auto& [key, value] : values_) all.push_back(value);
    return all;
  }
  bool AnyOf(absl::FunctionRef<bool(const Value&)> is_such) const {
    MutexLock lock(&mutex_);
    return std::any_of(values_.begin(), values_.end(),
                       [&](const auto& entry) { return is_such(entry.second); });
  }

 private:
  mutable Mutex mutex_;
  std::map<Key, Value, Order> values_ ABSL_GUARDED_BY(mutex_);
};

// The things of one kind that live in a process, by number.
// Finds things for as long as somebody else keeps them. Numbers are from 0 to 2^31 - 1; one comes
// again after all others.
// Threads: any. Owns: nothing of the things.
template <typename T>
class WeakTable {
 public:
  // A number that no thing has. The thing is entered under it by Enter.
  int32_t NextId() {
    MutexLock lock(&mutex_);
    do {
      last_id_ = last_id_ == INT32_MAX ? 0 : last_id_ + 1;
    } while (things_.contains(last_id_));
    return last_id_;
  }
  void Enter(int32_t id, std::weak_ptr<T> thing) {
    MutexLock lock(&mutex_);
    things_.insert_or_assign(id, std::move(thing));
  }
  // What was entered under `id`, or null if there was nothing or it has died.
  std::shared_ptr<T> Find(int32_t id) {
    MutexLock lock(&mutex_);
    const auto found = things_.find(id);
    return found == things_.end() ? nullptr : found->second.lock();
  }
  void Remove(int32_t id) {
    MutexLock lock(&mutex_);
    things_.erase(id);
  }

 private:
  Mutex mutex_;
  int32_t last_id_ ABSL_GUARDED_BY(mutex_) = -1;
  absl::flat_hash_map<int32_t, std::weak_ptr<T>> things_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SHARING_H_
