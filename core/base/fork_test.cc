#include "core/base/fork.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Runs `check` in a child that ends at once; whether it held.
template <typename Check>
bool HoldsInChild(Check check) {
  const pid_t child = fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool IsSocket(int number) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

struct Pair {
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); }
  ~Pair() {
    close(ends[0]);
    close(ends[1]);
  }
  int ends[2] = {-1, -1};
};

// Counts its destructions. Threads: one. Owns: nothing.
class Counted {
 public:
  explicit Counted(int* count) : count_(count) {}
  ~Counted() { ++*count_; }

 private:
  int* count_;
};

class ForkTest : public ::testing::Test {
 protected:
  ForkTest() { WatchForks(); }
};

TEST_F(ForkTest, AChildIsToldApartAndRefused) {
  EXPECT_FALSE(IsForkedChild());
  EXPECT_EQ(CheckNotForkedChild(), absl::OkStatus());
  EXPECT_TRUE(HoldsInChild(
      [] { return IsForkedChild() && absl::IsFailedPrecondition(CheckNotForkedChild()); }));
  EXPECT_TRUE(HoldsInChild([] { return HoldsInChild(&IsForkedChild); })) << "a child of a child";
  EXPECT_FALSE(IsForkedChild());
}

TEST_F(ForkTest, AChildDestroysNothing) {
  int destroyed = 0;
  auto one = ProcessPtr<Counted>(std::make_unique<Counted>(&destroyed));
  auto many = MakeProcessShared(std::make_unique<Counted>(&destroyed));
  EXPECT_TRUE(HoldsInChild([&] {
    one.reset();
    many.reset();
    return destroyed == 0;
  }));
  one.reset();
  many.reset();
  EXPECT_EQ(destroyed, 2);
}

TEST_F(ForkTest, TheOtherEndHearsOfTheParentsEndOfASocketThatChildrenLetGo) {
  Pair ours;
  Pair theirs;
  CloseInChildren(ours.ends[0]);
  EXPECT_TRUE(HoldsInChild([&] { return !IsSocket(ours.ends[0]) && IsSocket(theirs.ends[0]); }));
  EXPECT_TRUE(IsSocket(ours.ends[0]));
  EXPECT_EQ(write(ours.ends[0], "x", 1), 1) << "the parent's connection goes on";
}

TEST_F(ForkTest, ANumberThatWasGivenToAnotherSocketIsLeftAlone) {
  Pair old;
  Pair other;
  CloseInChildren(old.ends[0]);
  ASSERT_EQ(dup2(other.ends[0], old.ends[0]), old.ends[0]);
  EXPECT_TRUE(HoldsInChild([&] { return IsSocket(old.ends[0]); }));
}

TEST_F(ForkTest, APortsListenerAndConnectionsAreLetGo) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const int unconnected = socket(AF_INET, SOCK_STREAM, 0);
  ClosePortInChildren(ntohs(address.sin_port));
  EXPECT_TRUE(HoldsInChild(
      [&] { return !IsSocket(listener) && !IsSocket(client) && IsSocket(unconnected); }));
  for (const int number : {listener, client, unconnected}) close(number);
}

}  // namespace
}  // namespace pelton
