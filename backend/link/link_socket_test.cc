#include "backend/link/link_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "proto/link.pb.h"

namespace pelton {
namespace {

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(20); }

struct Pair {
  std::unique_ptr<LinkSocket> here;
  std::unique_ptr<LinkSocket> there;
};

Pair Connection() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {std::make_unique<LinkSocket>(Descriptor(ends[0])),
          std::make_unique<LinkSocket>(Descriptor(ends[1]))};
}

// Bytes as no LinkSocket would send them.
void SendRaw(const LinkSocket& socket, const std::string& bytes) {
  ASSERT_EQ(send(socket.descriptor(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
}

std::string Header(uint32_t total, uint32_t offset, uint32_t descriptors = 0) {
  const std::array<uint32_t, 4> words = {0x504C4B01, total, offset, descriptors};
  return std::string(reinterpret_cast<const char*>(words.data()), sizeof words);
}

TEST(LinkSocketTest, AMessageLongerThanAPacketArrivesWhole) {
  Pair pair = Connection();
  std::string payload(5'000'000, 'a');
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 31);
  absl::Status sent;
  std::thread sender([&] { sent = pair.here->Send(payload, {}, Soon()); });
  const auto message = pair.there->Receive(Soon());
  sender.join();
  ASSERT_TRUE(sent.ok()) << sent;
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(message->payload == payload);
}

TEST(LinkSocketTest, LongMessagesOfTwoThreadsDoNotMix) {
  Pair pair = Connection();
  std::vector<std::thread> senders;
  for (const char letter : {'a', 'b'}) {
    senders.emplace_back([&pair, letter] {
      const std::string payload(1'000'000, letter);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(pair.here->Send(payload, {}, Soon()).ok());
    });
  }
  for (int i = 0; i < 6; ++i) {
    const auto message = pair.there->Receive(Soon());
    ASSERT_TRUE(message.ok()) << message.status();
    const char letter = message->payload.front();
    EXPECT_TRUE(message->payload == std::string(1'000'000, letter));
  }
  for (std::thread& sender : senders) sender.join();
}

TEST(LinkSocketTest, AMessageBehindOneThatIsNotTakenWaitsNoLongerThanItMay) {
  Pair pair = Connection();
  const std::string payload(LinkSocket::kMaxMessageBytes, 'a');
  absl::Status sent;
  std::thread sender([&] { sent = pair.here->Send(payload, {}, Soon()); });
  // The first packet is there, and the socket has no room for all of them.
  pollfd entry{pair.there->descriptor(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, -1), 1);
  const absl::Time began = Clock::Real().Now();
  const absl::Status behind = pair.here->Send("behind", {}, absl::InfinitePast());
  EXPECT_TRUE(absl::IsDeadlineExceeded(behind)) << behind;
  EXPECT_GE(Clock::Real().Now() - began, LinkSocket::kTurnPatience);
  const auto message = pair.there->Receive(Soon());
  sender.join();
  EXPECT_TRUE(sent.ok()) << sent;
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_TRUE(message->payload == payload);
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair.there->Receive(absl::InfinitePast()).status()));
}

TEST(LinkSocketTest, AnEmptyMessageIsOne) {
  Pair pair = Connection();
  ASSERT_TRUE(pair.here->Send("", {}, Soon()).ok());
  const auto message = pair.there->Receive(Soon());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->payload, "");
}

TEST(LinkSocketTest, DescriptorsComeAlong) {
  Pair pair = Connection();
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor reader(ends[0]);
  const Descriptor writer(ends[1]);
  const int sent = writer.get();
  ASSERT_TRUE(pair.here->Send("a pipe", {&sent, 1}, Soon()).ok());
  const auto message = pair.there->Receive(Soon());
  ASSERT_TRUE(message.ok()) << message.status();
  ASSERT_EQ(message->descriptors.size(), 1u);
  ASSERT_EQ(write(message->descriptors[0].get(), "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(read(reader.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

TEST(LinkSocketTest, RefusesToSendWhatItWouldNotReceive) {
  Pair pair = Connection();
  const std::string payload(LinkSocket::kMaxMessageBytes + 1, 'a');
  EXPECT_TRUE(absl::IsInvalidArgument(pair.here->Send(payload, {}, Soon())));
  const std::array<int, LinkSocket::kMaxDescriptors + 1> many = {0, 0, 0, 0, 0};
  EXPECT_TRUE(absl::IsInvalidArgument(pair.here->Send("", many, Soon())));
}

TEST(LinkSocketTest, LooksWithoutWaiting) {
  Pair pair = Connection();
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair.here->Receive(absl::InfinitePast()).status()));
}

TEST(LinkSocketTest, APeersEndIsUnavailable) {
  Pair pair = Connection();
  pair.there.reset();
  EXPECT_TRUE(absl::IsUnavailable(pair.here->Receive(Soon()).status()));
  EXPECT_TRUE(absl::IsUnavailable(pair.here->Send("x", {}, Soon())));
}

TEST(LinkSocketTest, APeersLastMessageArrivesAfterItsEnd) {
  Pair pair = Connection();
  ASSERT_TRUE(pair.there->Send("last words", {}, Soon()).ok());
  pair.there->Shutdown();
  const auto message = pair.here->Receive(Soon());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->payload, "last words");
  EXPECT_TRUE(absl::IsUnavailable(pair.here->Receive(Soon()).status()));
}

TEST(LinkSocketTest, ShutdownEndsAWaitInAnotherThread) {
  Pair pair = Connection();
  std::thread waiting(
      [&] { EXPECT_TRUE(absl::IsUnavailable(pair.here->Receive(Soon()).status())); });
  pair.here->Shutdown();
  waiting.join();
}

TEST(LinkSocketTest, RefusesGarbage) {
  const std::string garbage[] = {
      "x",                              // shorter than a header
      std::string(64, 'g'),             // no magic
      Header(0xFFFFFFFF, 0),            // longer than any message
      Header(10, 5) + "01234",          // begins in the middle
      Header(3, 0) + "01234",           // more than the message
      Header(10, 0),                    // a part of nothing
      Header(2, 0, 1) + "ab",           // a descriptor that did not come
      Header(2, 0, 0xFFFFFFFF) + "ab",  // many of them
  };
  for (const std::string& bytes : garbage) {
    Pair pair = Connection();
    SendRaw(*pair.here, bytes);
    const absl::Status refused = pair.there->Receive(Soon()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
}

TEST(LinkSocketTest, APartThatDoesNotContinueItsMessageIsRefused) {
  Pair pair = Connection();
  SendRaw(*pair.here, Header(10, 0) + "01234");
  SendRaw(*pair.here, Header(11, 5) + "01234");
  EXPECT_TRUE(absl::IsInvalidArgument(pair.there->Receive(Soon()).status()));
}

TEST(LinkSocketTest, APeerThatDiesInTheMiddleIsUnavailable) {
  Pair pair = Connection();
  SendRaw(*pair.here, Header(10, 0) + "01234");
  pair.here.reset();
  EXPECT_TRUE(absl::IsUnavailable(pair.there->Receive(Soon()).status()));
}

TEST(LinkSocketTest, UnwantedDescriptorsAreClosed) {
  Pair pair = Connection();
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor reader(ends[0]);
  // A packet that says that nothing comes along, with the pipe's writing end.
  std::string bytes = Header(1, 0) + "x";
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  *reinterpret_cast<int*>(CMSG_DATA(rights)) = ends[1];
  ASSERT_GT(sendmsg(pair.here->descriptor(), &message, 0), 0);
  close(ends[1]);
  EXPECT_TRUE(absl::IsInvalidArgument(pair.there->Receive(Soon()).status()));
  char byte = 0;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);  // nobody has the other end any more
}

TEST(LinkSocketTest, AMessageOfAnotherTypeIsRefusedByName) {
  Pair pair = Connection();
  ASSERT_TRUE(pair.here->Send(std::string("\xff\xff\xff"), {}, Soon()).ok());
  proto::LinkHello hello;
  const absl::Status refused = pair.there->Receive(hello, Soon());
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_NE(refused.message().find("LinkHello"), std::string::npos) << refused;
}

TEST(LinkSocketTest, APathThatDoesNotFitSaysSo) {
  const std::string path(200, 'p');
  EXPECT_TRUE(absl::IsInvalidArgument(LinkSocket::Listen(path).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LinkSocket::Connect(path, Soon()).status()));
}

TEST(LinkSocketTest, NobodyListeningIsNotFound) {
  const absl::Status status = LinkSocket::Connect("/nowhere/socket", Soon()).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

}  // namespace
}  // namespace pelton
