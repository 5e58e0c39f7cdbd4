#include "comm/transport/shm/socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/descriptor.h"

namespace pelton::shm {
namespace {

std::array<Descriptor, 2> Connection() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Frame FrameOf(Frame::Type type) {
  Frame frame;
  frame.type = type;
  return frame;
}

// The kernel tells of the unread message first, as of a broken connection.
TEST(SocketTest, ThePeersLastWordsArriveAlthoughItLeftOursUnread) {
  auto [here, there] = Connection();
  ASSERT_TRUE(Send(here.get(), FrameOf(Frame::kDeregister)).ok());
  ASSERT_TRUE(Send(there.get(), FrameOf(Frame::kOpen)).ok());
  ASSERT_TRUE(Send(there.get(), FrameOf(Frame::kGoodbye)).ok());
  there = Descriptor();
  for (const Frame::Type type : {Frame::kOpen, Frame::kGoodbye}) {
    const absl::StatusOr<Message> message = Receive(here.get(), absl::InfinitePast());
    ASSERT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(message->frame.type, type);
  }
  const absl::Status end = Receive(here.get(), absl::InfinitePast()).status();
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
}

TEST(SocketTest, AMessageThatWasPeekedAtStaysWithWhatItBrings) {
  auto [here, there] = Connection();
  EXPECT_TRUE(absl::IsDeadlineExceeded(Peek(here.get()).status()));
  ASSERT_TRUE(Send(there.get(), FrameOf(Frame::kOpen), "payload", here.get()).ok());
  there = Descriptor();
  for (int look = 0; look < 2; ++look) {
    const absl::StatusOr<Frame> next = Peek(here.get());
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->type, Frame::kOpen);
  }
  const absl::StatusOr<Message> message = Receive(here.get(), absl::InfinitePast());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->payload, "payload");
  EXPECT_TRUE(message->attached.is_open());
  EXPECT_TRUE(absl::IsUnavailable(Peek(here.get()).status()));
}

TEST(SocketTest, NoiseIsNoMessageToPeekAt) {
  auto [here, there] = Connection();
  ASSERT_EQ(send(there.get(), "noise", 5, 0), 5);
  EXPECT_TRUE(absl::IsInvalidArgument(Peek(here.get()).status()));
}

}  // namespace
}  // namespace pelton::shm
