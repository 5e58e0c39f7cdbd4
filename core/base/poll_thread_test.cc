#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/sync.h"
#include "core/base/threads.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

absl::Time In(absl::Duration duration) { return Clock::Real().Now() + duration; }

// A number that a thread waits for. Threads: any. Owns: the number.
class Mark {
 public:
  void Set(int value) {
    MutexLock lock(&mutex_);
    value_ = value;
    changed_.SignalAll();
  }
  // False: it has not come in a minute.
  bool Await(int value) {
    const absl::Time deadline = In(absl::Minutes(1));
    MutexLock lock(&mutex_);
    while (value_ < value) {
      if (changed_.WaitWithDeadline(&mutex_, deadline) && value_ < value) return false;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int value_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Two ends of a connection.
struct Pair {
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0); }
  ~Pair() {
    for (int end : ends) {
      if (end >= 0) close(end);
    }
  }
  void Close(int end) { close(std::exchange(ends[end], -1)); }
  int ends[2] = {-1, -1};
};

TEST(PollThreadTest, NoWakeIsLost) {
  constexpr int kWakes = 20000;
  std::atomic<int> written{0};
  Mark seen;
  PollThread thread("poll");
  thread.Start(
      [&](std::vector<pollfd>&) {
        seen.Set(written.load());
        return absl::InfiniteFuture();
      },
      [](const std::vector<pollfd>&) {});
  std::thread other([&] {  // wakes at any point of the thread's turn
    for (int i = 0; i < kWakes; ++i) thread.Wake();
  });
  bool all = true;
  for (int i = 1; i <= kWakes && all; ++i) {
    written.store(i);
    thread.Wake();
    all = seen.Await(i);
  }
  EXPECT_TRUE(all);
  other.join();
}

TEST(PollThreadTest, TellsWhichDescriptorHasNews) {
  Pair silent;
  Pair pair;
  Mark got;
  PollThread thread("poll");
  thread.Start(
      [&](std::vector<pollfd>& entries) {
        EXPECT_TRUE(entries.empty());
        entries = {{silent.ends[0], POLLIN, 0}, {pair.ends[0], POLLIN, 0}};
        return absl::InfiniteFuture();
      },
      [&](const std::vector<pollfd>& entries) {
        ASSERT_EQ(entries.size(), 2u);
        EXPECT_EQ(entries[0].revents, 0);
        char byte = 0;
        if (entries[1].revents == POLLIN && read(pair.ends[0], &byte, 1) == 1) got.Set(byte);
      });
  for (const char byte : {1, 2}) {
    ASSERT_EQ(write(pair.ends[1], &byte, 1), 1);
    EXPECT_TRUE(got.Await(byte));
  }
  thread.Stop();
}

TEST(PollThreadTest, AnEndAndAClosedDescriptorAreNews) {
  Pair pair;
  const int closed = fcntl(pair.ends[0], F_DUPFD, 100);  // which nobody takes meanwhile
  ASSERT_EQ(close(closed), 0);
  int revents[2] = {0, 0};
  Mark told;
  PollThread thread("poll");
  thread.Start(
      [&](std::vector<pollfd>& entries) {
        entries = {{pair.ends[0], 0, 0}, {closed, POLLIN, 0}};
        return revents[0] == 0 ? std::optional(absl::InfiniteFuture()) : std::nullopt;
      },
      [&](const std::vector<pollfd>& entries) {
        for (int i = 0; i < 2; ++i) revents[i] = entries[static_cast<size_t>(i)].revents;
        if (revents[0] != 0) told.Set(1);
      });
  pair.Close(1);
  ASSERT_TRUE(told.Await(1));
  thread.Stop();
  EXPECT_EQ(revents[0], POLLHUP);
  EXPECT_EQ(revents[1], POLLNVAL);
}

TEST(PollThreadTest, ReactsAtTheDeadlineAndNotBefore) {
  absl::Time deadline;
  Mark reacted;
  int early = 0;
  PollThread thread("poll");
  thread.Start(
      [&](std::vector<pollfd>&) {
        deadline = In(absl::Microseconds(1500));
        return deadline;
      },
      [&, count = 0](const std::vector<pollfd>&) mutable {
        early += Clock::Real().Now() < deadline;
        reacted.Set(++count);
      });
  EXPECT_TRUE(reacted.Await(3));
  thread.Stop();
  EXPECT_EQ(early, 0);
}

TEST(PollThreadTest, StopWaitsForTheCallbackThatRuns) {
  Mark begun;
  Mark may_end;
  std::atomic<int> calls{0};
  std::atomic<bool> has_ended{false};
  PollThread thread("poll");
  thread.Start(
      [&](std::vector<pollfd>&) {
        ++calls;
        begun.Set(1);
        EXPECT_TRUE(may_end.Await(1));
        has_ended = true;
        return absl::InfiniteFuture();
      },
      [](const std::vector<pollfd>&) {});
  ASSERT_TRUE(begun.Await(1));
  std::thread other([&] { may_end.Set(1); });
  thread.Stop();
  EXPECT_TRUE(has_ended);
  thread.Wake();
  thread.Stop();
  other.join();
  EXPECT_EQ(calls, 1);
}

TEST(PollThreadTest, ACallbackEndsItByItsAnswer) {
  std::atomic<int> calls{0};
  Mark ended;
  {
    PollThread thread("poll");
    thread.Start(
        [&](std::vector<pollfd>&) -> std::optional<absl::Time> {
          if (++calls < 3) return absl::InfinitePast();
          ended.Set(1);
          return std::nullopt;
        },
        [](const std::vector<pollfd>&) {});
    EXPECT_TRUE(ended.Await(1));
    thread.Wake();
  }
  EXPECT_EQ(calls, 3);
}

TEST(PollThreadTest, OneThatWasNeverStartedEnds) {
  PollThread thread("poll");
  thread.Wake();
  thread.Stop();
}

TEST(PollThreadTest, WakesWhereTheProcessHasNoDescriptorLeft) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  PollThread thread("poll");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::atomic<int> written{0};
  Mark seen;
  thread.Start(
      [&](std::vector<pollfd>&) {
        seen.Set(written.load());
        return absl::InfiniteFuture();
      },
      [](const std::vector<pollfd>&) {});
  written.store(1);
  thread.Wake();
  EXPECT_TRUE(seen.Await(1));
}

// Whose thread is the parent's alone.
TEST(PollThreadTest, AForkedChildLetsGoOfIt) {
  std::atomic<int> prepared{0};
  Mark waits;
  auto thread = std::make_unique<PollThread>("poll");
  thread->Start(
      [&](std::vector<pollfd>&) {
        waits.Set(++prepared);
        return absl::InfiniteFuture();
      },
      [](const std::vector<pollfd>&) {});
  ASSERT_TRUE(waits.Await(1));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // where it waits for a thread that it does not have
    thread->Wake();
    thread.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(prepared, 1);  // nothing of the child's has reached the parent
  thread->Wake();
  EXPECT_TRUE(waits.Await(2));
}

}  // namespace
}  // namespace pelton
