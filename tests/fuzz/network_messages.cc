// The headers between ranks of different hosts, as a peer that holds the job's token may send them.
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/transport/network/conversation.h"
#include "core/base/check.h"
#include "tests/fuzz/input.h"

namespace pelton::network {
namespace {

constexpr size_t kReceivedBytes = 64;

Members MembersOf(int rank) {
  return Members("a job's token", CommunicatorId(3), Group::World(WorldSize(2)), Rank(rank));
}

// Sends nothing, and counts what is left with it.
// Threads: one. Owns: nothing.
class SilentWorker final : public Worker {
 public:
  explicit SilentWorker(int* kept) : kept_(*kept) {}
  const std::string& address() const override { return address_; }
  absl::Status AcceptFrom(const std::set<uint32_t>&) override { return absl::OkStatus(); }
  absl::Status StopListening() override { return absl::OkStatus(); }
  absl::Status Connect(int, const std::string&) override { return absl::OkStatus(); }
  bool IsConnected(int) const override { return true; }
  absl::StatusOr<bool> Send(int, const SendRequest&) override { return true; }
  absl::StatusOr<bool> Pull(const Payload& payload, void* target, Waiter*) override {
    --kept_;
    std::memset(target, 1, payload.size_bytes);
    return true;
  }
  void Release(const Payload&) override { --kept_; }
  bool Progress() override { return false; }
  bool Arm() override { return true; }
  int descriptor() const override { return -1; }
  bool Flush() override { return true; }
  void Close() override {}

 private:
  int& kept_;
  const std::string address_;
};

// Threads: as Network. Owns: nothing.
class SilentNetwork final : public Network {
 public:
  explicit SilentNetwork(int* kept) : kept_(kept) {}
  const std::string& interface() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Worker>> MakeWorker(Receiver&, const std::vector<Rank>&) override {
    return std::make_unique<SilentWorker>(kept_);
  }

 private:
  int* const kept_;
  const std::string name_ = "none";
};

// A receive that some of the messages may meet.
void StartReceive(Conversation& conversation, std::vector<std::byte>& memory) {
  Operation receive;
  receive.kind = OperationKind::kRecv;
  receive.dtype = DType::kUInt8;
  receive.peer = 1;
  receive.count = memory.size();
  PELTON_CHECK_OK(conversation.point_to_point().Start(receive, memory.data()).status());
}

// A whole header and what comes behind it; its key is put in, as a stranger's is refused at once.
void Deliver(Conversation& conversation, const Members& peer, fuzz::Input& input, int* kept) {
  Header header;
  const uint8_t is_rendezvous = input.TakeByte();
  const absl::string_view bytes = input.Take(sizeof header - sizeof header.key);
  std::memcpy(reinterpret_cast<char*>(&header) + sizeof header.key, bytes.data(), bytes.size());
  header.key = peer.MakeHeader(MessageType::kData, 0).key;
  // Of its own size, so that a sanitizer sees whoever reads beyond it.
  const absl::string_view chunk = input.TakeChunk();
  std::vector<char> payload(chunk.begin(), chunk.end());
  const Payload behind{payload.data(), payload.size(), is_rendezvous % 2 == 1};
  const bool is_kept = conversation.Receive(header, behind);
  if (is_kept && (behind.is_rendezvous || behind.size_bytes > 0)) ++*kept;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int kept = 0;
  std::vector<std::byte> memory(kReceivedBytes);
  {
    SilentNetwork network(&kept);
    auto conversation = Conversation::Create(network, MembersOf(0));
    PELTON_CHECK_OK(conversation.status());
    StartReceive(**conversation, memory);
    const Members peer = MembersOf(1);
    for (pelton::fuzz::Input input(data, size); !input.empty();) {
      Deliver(**conversation, peer, input, &kept);
    }
    (*conversation)->point_to_point().DropArrivals();
    (*conversation)->point_to_point().Cancel(absl::CancelledError("the end"));
  }
  PELTON_CHECK(kept == 0) << kept << " payloads were neither fetched nor released";
  return 0;
}

}  // namespace pelton::network
