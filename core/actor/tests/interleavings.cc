#include "core/actor/tests/interleavings.h"

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "core/base/check.h"

namespace pelton::interleavings {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
// Operations of one run: more is a loop that waits without sleeping.
constexpr int kMostSteps = 2'000;

// Which values a thread has seen: by location, the place of the newest in the location's order.
// Threads: one. Owns: the places.
class View {
 public:
  uint32_t At(Location location) const { return location < places_.size() ? places_[location] : 0; }
  void Advance(Location location, uint32_t place) {
    if (places_.size() <= location) places_.resize(location + 1, 0);
    places_[location] = std::max(places_[location], place);
  }
  void Join(const View& other) {
    for (Location i = 0; i < other.places_.size(); ++i) Advance(i, other.places_[i]);
  }
  // Of the locations for which `is_wanted` holds.
  template <typename F>
  void JoinSome(const View& other, F is_wanted) {
    for (Location i = 0; i < other.places_.size(); ++i) {
      if (is_wanted(i)) Advance(i, other.places_[i]);
    }
  }

 private:
  std::vector<uint32_t> places_;
};

struct Write {
  uint64_t value;
  View released;
};

// The decisions of a run: those of the run before up to the last that had another way, then that
// one, then first ways.
// Threads: one. Owns: the decisions.
class Decisions {
 public:
  size_t Choose(size_t ways) {
    if (ways == 1) return 0;
    if (next_ == taken_.size()) taken_.push_back({0, ways});
    return taken_[next_++].way;
  }
  // False: all ways were tried.
  bool Advance() {
    next_ = 0;
    while (!taken_.empty() && taken_.back().way + 1 == taken_.back().ways) taken_.pop_back();
    if (taken_.empty()) return false;
    ++taken_.back().way;
    return true;
  }

 private:
  struct Decision {
    size_t way;
    size_t ways;
  };
  std::vector<Decision> taken_;
  size_t next_ = 0;
};

// Leaves a thread of a run that is over.
struct RunIsOver {};

// One run.
// Threads: one; the program's threads are contexts on it. Owns: the contexts and the memory.
class Run {
 public:
  Run(Decisions& decisions, int preemptions) : decisions_(decisions), preemptions_(preemptions) {
    // What the program's maker does; seen by all threads.
    threads_.emplace_back();
  }

  void Execute(Program program) {
    const View made = threads_[0].view;
    for (std::function<void()>& body : program.threads) {
      Thread& thread = threads_.emplace_back();
      thread.view = made;
      thread.body = std::move(body);
      thread.stack = std::make_unique<char[]>(kStackBytes);
      PELTON_CHECK(getcontext(&thread.context) == 0);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = kStackBytes;
      thread.context.uc_link = &home_;
      makecontext(&thread.context, &Run::Enter, 0);
    }
    mortal_ = program.mortal == Program::kNobody ? 0 : program.mortal + 1;
    while (StepOne()) {
    }
    UnwindKilled();
    current_ = 0;
    if (!error.empty()) return;
    for (const Thread& thread : threads_) threads_[0].view.Join(thread.view);
    program.at_end();
  }

  std::string error;

  // What a thread does; each may be preceded by others' steps.
  Location NewLocation(uint64_t value, bool is_plain) {
    const auto location = static_cast<Location>(memory_.size());
    memory_.push_back({Write{value, {}}});
    is_plain_.push_back(is_plain);
    return location;
  }
  uint64_t Load(Location location, std::memory_order order) {
    Yield();
    const bool is_ordered = order == std::memory_order_seq_cst;
    const uint32_t oldest = std::max(me().view.At(location), is_ordered ? common_.At(location) : 0);
    const auto count = static_cast<uint32_t>(memory_[location].size());
    // The newest first: the plain course of things is tried first.
    const auto age = static_cast<uint32_t>(decisions_.Choose(count - oldest));
    if (is_ordered) common_.Advance(location, count - 1 - age);
    return See(location, count - 1 - age, order);
  }
  void Store(Location location, uint64_t value, std::memory_order order) {
    Yield();
    Append(location, value, order, {});
    if (order == std::memory_order_seq_cst) ShowNewest(location);
  }
  uint64_t Change(Location location, const std::function<bool(uint64_t&)>& change,
                  std::memory_order order) {
    Yield();
    const uint32_t newest = Newest(location);
    const View released = memory_[location][newest].released;
    const uint64_t old = See(location, newest, order);
    uint64_t value = old;
    if (change(value)) Append(location, value, order, released);
    if (order == std::memory_order_seq_cst) ShowNewest(location);
    return old;
  }
  void Fence() {
    Yield();
    me().view.Join(me().seen_relaxed);
    MeetOthers();
    me().fenced = me().view;
  }
  void Sleep(Location location, uint64_t expected) {
    Yield();
    // The kernel looks at the word with full fences around.
    MeetOthers();
    if (memory_[location].back().value != expected) return;
    me().sleeps_at = location;
    me().is_asleep = true;
    Yield();
  }
  void WakeSleepers(Location location, int count) {
    Yield();
    MeetOthers();
    for (Thread& thread : threads_) {
      if (count == 0) return;
      if (!thread.is_asleep || thread.sleeps_at != location) continue;
      thread.is_asleep = false;
      --count;
    }
  }
  void AwaitWrite() {
    Yield();
    // What has been written by now is seen some time, without anything else becoming visible by it.
    if (SeeNewest()) return;
    me().awaits_write = true;
    Yield();
    SeeNewest();
  }
  bool AwaitEnd(size_t thread) {
    Yield();
    me().awaits_end_of = thread + 1;
    if (!CanGoOn(me())) Yield();
    me().view.Join(threads_[thread + 1].view);
    return threads_[thread + 1].is_killed;
  }
  bool HasDied(size_t thread) {
    Yield();
    return threads_[thread + 1].is_killed;
  }
  void Touch(Location location, bool writes) {
    if (me().view.At(location) != Newest(location)) {
      Fail("a data race: it has not seen the last write");
    }
    std::map<size_t, Location>& readers = readers_[location];
    if (!writes) {
      // A read is a write to a location of this reader's own, which the next writer must have seen.
      const auto own = readers.find(current_);
      const Location reads = own != readers.end() ? own->second : NewLocation(0, /*is_plain=*/true);
      readers[current_] = reads;
      return Append(reads, 0, std::memory_order_relaxed, {});
    }
    for (const auto& [reader, reads] : readers) {
      if (me().view.At(reads) != Newest(reads)) {
        Fail("a data race: it writes what another one may still be reading");
      }
    }
    Append(location, 0, std::memory_order_relaxed, {});
  }
  [[noreturn]] void Fail(const std::string& what) {
    if (error.empty()) error = what;
    throw RunIsOver();
  }

 private:
  struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    std::function<void()> body;
    View view;
    View fenced;        // what a relaxed store hands on
    View seen_relaxed;  // what a fence takes over
    bool is_asleep = false;
    bool awaits_write = false;
    bool is_done = false;
    bool is_killed = false;  // and done
    Location sleeps_at = 0;
    size_t awaits_end_of = 0;  // of the maker, that is of nobody
  };

  static void Enter();

  Thread& me() { return threads_[current_]; }
  uint32_t Newest(Location location) const {
    return static_cast<uint32_t>(memory_[location].size() - 1);
  }

  bool CanGoOn(const Thread& thread) const {
    const bool is_over = thread.awaits_end_of == 0 || threads_[thread.awaits_end_of].is_done;
    return !thread.is_asleep && !thread.awaits_write && is_over;
  }

  // One step of a thread that can go on; false: none can.
  bool StepOne() {
    std::vector<size_t> ready;
    bool all_done = true;
    // Once the run has failed everybody leaves it, also who sleeps. The last one first: it goes on
    // without a switch in the first way.
    for (size_t i = 1; i < threads_.size(); ++i) {
      const size_t index = (last_ + i - 1) % (threads_.size() - 1) + 1;
      const Thread& thread = threads_[index];
      all_done &= thread.is_done;
      if (!thread.is_done && (CanGoOn(thread) || !error.empty())) ready.push_back(index);
    }
    if (ready.empty()) {
      if (all_done) return false;
      error = "every thread sleeps: a wake-up was lost";
      for (const Thread& thread : threads_) {
        if (thread.awaits_write) error = "a thread looks for what nobody writes any more";
      }
      return true;
    }
    const bool goes_on = ready.front() == last_ + 1;
    size_t ways = error.empty() ? ready.size() : 1;
    if (goes_on && preemptions_ == 0) ways = 1;
    current_ = ready[decisions_.Choose(ways)];
    if (goes_on && current_ != ready.front()) --preemptions_;
    last_ = current_ - 1;
    if (++steps_ > kMostSteps && error.empty()) error = "a run without an end";
    PELTON_CHECK(swapcontext(&home_, &me().context) == 0);
    const bool may_die = current_ == mortal_ && !me().is_done && error.empty();
    if (may_die && decisions_.Choose(2) == 1) me().is_killed = me().is_done = true;
    return true;
  }
  // Gives back what lies on the stacks of killed threads.
  void UnwindKilled() {
    for (size_t i = 1; i < threads_.size(); ++i) {
      current_ = i;
      if (me().is_killed) PELTON_CHECK(swapcontext(&home_, &me().context) == 0);
    }
  }
  void Yield() {
    if (current_ == 0) return;  // the maker is alone
    PELTON_CHECK(swapcontext(&me().context, &home_) == 0);
    if (!error.empty() || me().is_killed) throw RunIsOver();
  }
  // Of atomics only: what lies in other memory becomes visible by what is read, and not by a fence.
  void MeetOthers() {
    me().view.Join(common_);
    common_.JoinSome(me().view, [this](Location location) { return !is_plain_[location]; });
  }
  // To operations of order seq_cst on this location, and to whoever comes to a fence after this.
  void ShowNewest(Location location) { common_.Advance(location, Newest(location)); }
  // Of all atomics; whether there was anything new.
  bool SeeNewest() {
    bool is_news = false;
    for (Location i = 0; i < memory_.size(); ++i) {
      if (is_plain_[i] || me().view.At(i) == Newest(i)) continue;
      me().view.Advance(i, Newest(i));
      is_news = true;
    }
    return is_news;
  }
  uint64_t See(Location location, uint32_t place, std::memory_order order) {
    const Write& write = memory_[location][place];
    me().view.Advance(location, place);
    const bool acquires = order != std::memory_order_relaxed && order != std::memory_order_release;
    (acquires ? me().view : me().seen_relaxed).Join(write.released);
    return write.value;
  }
  // `before` is handed on as well: the write follows one that released it.
  void Append(Location location, uint64_t value, std::memory_order order, View before) {
    const auto place = static_cast<uint32_t>(memory_[location].size());
    me().view.Advance(location, place);
    const bool releases = order != std::memory_order_relaxed &&
                          order != std::memory_order_acquire && order != std::memory_order_consume;
    before.Join(releases ? me().view : me().fenced);
    before.Advance(location, place);
    memory_[location].push_back({value, std::move(before)});
    if (is_plain_[location]) return;
    for (Thread& thread : threads_) thread.awaits_write = false;
  }

  Decisions& decisions_;
  int preemptions_;  // that are left
  std::vector<std::vector<Write>> memory_;
  std::vector<bool> is_plain_;                              // by location
  std::map<Location, std::map<size_t, Location>> readers_;  // of plain memory, by thread
  std::deque<Thread> threads_;                              // a context does not move
  View common_;                                             // of seq_cst
  ucontext_t home_;
  size_t current_ = 0;
  size_t last_ = 0;
  size_t mortal_ = 0;  // the maker, that is nobody
  int steps_ = 0;
};

Run* run = nullptr;

void Run::Enter() {
  Thread& self = run->me();
  try {
    self.body();
  } catch (const RunIsOver&) {
  }
  self.is_done = true;
}

}  // namespace

Outcome Explore(const std::function<Program()>& make, int most_preemptions) {
  Decisions decisions;
  Outcome outcome;
  do {
    Run one(decisions, most_preemptions);
    run = &one;
    ++outcome.runs;
    try {
      one.Execute(make());
    } catch (const RunIsOver&) {
    }
    run = nullptr;
    outcome.error = one.error;
  } while (outcome.error.empty() && decisions.Advance());
  return outcome;
}

void Fail(const std::string& what) { run->Fail(what); }
Location NewLocation(uint64_t value) { return run->NewLocation(value, /*is_plain=*/false); }
Location NewPlainLocation() { return run->NewLocation(0, /*is_plain=*/true); }
uint64_t Load(Location location, std::memory_order order) { return run->Load(location, order); }
void Store(Location location, uint64_t value, std::memory_order order) {
  run->Store(location, value, order);
}
uint64_t Change(Location location, const std::function<bool(uint64_t&)>& change,
                std::memory_order order) {
  return run->Change(location, change, order);
}
void Fence() { run->Fence(); }
void AwaitWrite() { run->AwaitWrite(); }
bool AwaitEnd(size_t thread) { return run->AwaitEnd(thread); }
bool HasDied(size_t thread) { return run->HasDied(thread); }
void Sleep(Location location, uint64_t expected) { run->Sleep(location, expected); }
void WakeSleepers(Location location, int count) { run->WakeSleepers(location, count); }
void Touch(Location location, bool writes) { run->Touch(location, writes); }

}  // namespace pelton::interleavings
