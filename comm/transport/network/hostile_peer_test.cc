// A peer that holds the token and says what it likes: frames and headers at random, genuine ones
// among them, to a conversation over TCP that sends and receives meanwhile. Nothing it says may
// touch memory that is not its to write, or end the process; that its communicator ends is all
// right.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/transport/network/conversation.h"
#include "comm/transport/tcp/connection.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "comm/transport/tcp/trunk.h"
#include "core/base/sync.h"
#include "gtest/gtest.h"

namespace pelton::network {
namespace {

const in_addr_t kHost = htonl(INADDR_LOOPBACK);
constexpr char kToken[] = "a job's token";
constexpr size_t kBytes = 20'000;  // of a tensor: some messages are offered, some are not

Members MembersOf(int rank, CommunicatorId id = CommunicatorId(3)) {
  return Members(kToken, id, Group::World(WorldSize(2)), Rank(rank));
}

TransportOptions OptionsOf(Rank rank) {
  TransportOptions options;
  options.rank = rank;
  options.world_size = WorldSize(2);
  options.job_token = kToken;
  return options;
}

template <typename T>
void Append(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Threads: one. Owns: the conversation of rank 1 under attack, and what it works on.
class Attack {
 public:
  explicit Attack(uint64_t seed) : random_(seed), peer_(MembersOf(0)), memory_(kBytes) {}

  // A peer that breaks the rules is lost, and its place with it.
  void Run(int lives, int steps) {
    for (int life = 0; life < lives; ++life) {
      network_ = *tcp::MakeTcpNetwork(OptionsOf(Rank(1)));
      conversation_ = *Conversation::Create(*network_, MembersOf(1));
      address_ = *conversation_->AcceptFrom({kHost});
      Connect();
      for (int step = 0; step < steps && link_.is_open(); ++step) {
        Speak();
        Step();
        Listen();
      }
      End();
    }
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  void Step() {
    MutexLock lock(&conversation_->mutex());
    Work();
    conversation_->worker().Progress();
  }

  void End() {
    {
      MutexLock lock(&conversation_->mutex());
      conversation_->point_to_point().DropArrivals();
      conversation_->worker().Close();
      conversation_->point_to_point().Cancel(absl::CancelledError("the end"));
    }
    conversation_.reset();
    link_ = Descriptor();
  }

  void Connect() {
    const size_t slash = address_.find('/');
    auto made = tcp::Connect(kHost, *tcp::ParseAddress(address_.substr(0, slash)));
    ASSERT_TRUE(made.ok()) << made.status();
    link_ = *std::move(made);
    said_.clear();
    sequence_ = 0;
    tcp::Frame greeting;
    greeting.type = tcp::FrameType::kGreeting;
    Append(greeting, &said_);
    Append(MembersOf(0, tcp::kGreetings).MakeHeader(MessageType::kHello, 1), &said_);
    MutexLock lock(&conversation_->mutex());
    EXPECT_TRUE(conversation_->worker().Connect(0, address_.substr(0, slash) + "/1").ok());
  }

  Header RandomHeader() {
    Header header = peer_.MakeHeader(static_cast<MessageType>(1 + Below(8)), 1);
    header.flags = static_cast<uint8_t>(Below(8));
    header.ticket = Below(40);
    Operation& operation = header.operation;
    operation.kind = Below(4) > 0 ? OperationKind::kSend : OperationKind::kRecv;
    operation.dtype = DType::kUInt8;
    operation.peer = static_cast<int32_t>(Below(3)) - (Below(20) == 0 ? 1 : 0);
    if (Below(2) == 0) operation.peer = 1;
    operation.count = Below(3) == 0 ? kBytes : Below(200);
    operation.sequence = Below(8) == 0 ? Below(100) : sequence_ + 1;
    operation.tag = static_cast<int32_t>(Below(3));
    if (Below(30) == 0) header.key[0] ^= 1;
    return header;
  }

  void Speak() {
    for (uint64_t frames = 1 + Below(6); frames > 0; --frames) {
      tcp::Frame frame;
      frame.type = static_cast<tcp::FrameType>(Below(40) == 0 ? Below(99) : 1 + Below(5));
      if (Below(10) == 0) frame.type = tcp::FrameType::kWithdrawn;
      frame.port = Below(20) == 0 ? 2 : 1;
      frame.id = Below(12);
      const Header header = RandomHeader();
      const bool is_message = frame.type == tcp::FrameType::kMessage;
      const bool is_offer = frame.type == tcp::FrameType::kOffer;
      const bool is_long = frame.type == tcp::FrameType::kBody && Below(2) == 0;
      frame.size_bytes = is_long ? kBytes : Below(300);
      if (is_message || is_offer) frame.size_bytes = header.operation.count;
      if (Below(30) == 0) frame.size_bytes = random_();
      Append(frame, &said_);
      if (is_message || is_offer) Append(header, &said_);
      if ((is_message || is_offer) && header.type == MessageType::kData) ++sequence_;
      const bool has_bytes = is_message || frame.type == tcp::FrameType::kBody;
      if (has_bytes && frame.size_bytes <= kBytes) said_.append(frame.size_bytes, 'x');
    }
    const ssize_t count =
        send(link_.get(), said_.data(), said_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    const bool is_broken = count < 0 && errno != EAGAIN && errno != ENOTCONN;
    if (count > 0) said_.erase(0, static_cast<size_t>(count));
    if (is_broken || Below(60) == 0) link_ = Descriptor();
  }

  // What the conversation has to say goes nowhere.
  void Listen() {
    char bytes[4096];
    while (link_.is_open() && recv(link_.get(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
  }

  void Work() {
    PointToPoint& point_to_point = conversation_->point_to_point();
    if (!conversation_->worker().IsConnected(0) || !point_to_point.HasRoom()) return;
    Operation operation;
    operation.kind = Below(3) == 0 ? OperationKind::kSend : OperationKind::kRecv;
    operation.dtype = DType::kUInt8;
    operation.peer = 0;
    operation.count = Below(3) == 0 ? kBytes : Below(200);
    operation.tag = static_cast<int32_t>(Below(3));
    const absl::StatusOr<uint64_t> ticket = point_to_point.Start(operation, memory_.data());
    if (ticket.ok()) point_to_point.Query(*ticket);
  }

  std::mt19937_64 random_;
  const Members peer_;
  std::unique_ptr<Network> network_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Conversation> conversation_;
  std::string address_;
  Descriptor link_;
  std::string said_;  // and not sent yet
  uint64_t sequence_ = 0;
};

TEST(HostilePeerTest, NothingThatItSaysDoesHarm) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Attack(seed).Run(/*lives=*/5, /*steps=*/60);
  }
}

}  // namespace
}  // namespace pelton::network
