// Writes the corpora of the fuzz targets, out of messages as the runtime makes them: `make_corpus
// FOLDER`.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/link/link_record.h"
#include "backend/link/link_socket.h"
#include "backend/link/page.h"
#include "backend/link/rounds_messages.h"
#include "comm/control/wire.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/shm/mapping.h"
#include "comm/transport/shm/socket.h"
#include "core/base/check.h"
#include "proto/control.pb.h"
#include "proto/link.pb.h"
#include "proto/link_rounds.pb.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/packets.h"

namespace pelton {
namespace {

using Corpus = std::map<std::string, std::string>;  // input by name
using fuzz::Byte;
using fuzz::Chunk;

absl::Time Soon() { return absl::Now() + absl::Seconds(5); }

// Both ends of a connection.
// Threads: one. Owns: the ends.
struct Ends {
  Descriptor sender;
  Descriptor receiver;
};

Ends Connected() {
  int ends[2];
  PELTON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// What was sent, as input.
std::string PacketsOf(int socket) {
  std::string packets;
  char bytes[1 << 16];
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))];
  while (true) {
    iovec part{bytes, sizeof bytes};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket, &header, MSG_DONTWAIT);
    if (got <= 0) return packets;
    const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    const size_t count = rights == nullptr ? 0 : (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    packets += fuzz::Packet(static_cast<uint8_t>(count),
                            absl::string_view(bytes, static_cast<size_t>(got)));
  }
}

Operation AnOperation() {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.source_region = operation.target_region = RegionId(3);
  operation.count = 1000;
  return operation;
}

Corpus LinkRecords() {
  LinkRecord launch{.kind = LinkRecord::kLaunch, .ticket = 7, .operation = AnOperation()};
  LinkRecord send = launch;
  send.operation.kind = OperationKind::kSend;
  send.operation.peer = 1;
  const LinkRecord done{.kind = LinkRecord::kDone, .ticket = 7, .operation = {}};
  return {{"launch", EncodeRecord(launch)},
          {"send", EncodeRecord(send)},
          {"close", EncodeRecord(LinkRecord{.kind = LinkRecord::kClose, .operation = {}})},
          {"failed", EncodeRecord(done, absl::UnavailableError("rank 1 is lost"))}};
}

Corpus LinkPackets() {
  Ends ends = Connected();
  LinkSocket socket(std::move(ends.sender));
  PELTON_CHECK_OK(socket.Send("hello", {}, Soon()));
  const int attached[] = {0, 1};
  PELTON_CHECK_OK(socket.Send("two descriptors", attached, Soon()));
  Corpus corpus{{"two", PacketsOf(ends.receiver.get())}};
  // A long message is cut where a packet is full; a short one, cut by hand, has the same shape.
  PELTON_CHECK_OK(socket.Send("in two parts", {}, Soon()));
  const std::string whole = PacketsOf(ends.receiver.get());
  constexpr size_t kBefore = 3;   // what a packet of the input begins with
  constexpr size_t kHeader = 16;  // of the link
  std::string header = whole.substr(kBefore, kHeader);
  const std::string first = header + whole.substr(kBefore + kHeader, 7);
  header[8] = 7;                          // the offset
  corpus["empty"] = fuzz::Packet(2, "");  // its descriptors come all the same
  corpus["parts"] =
      fuzz::Packet(0, first) + fuzz::Packet(0, header + whole.substr(kBefore + kHeader + 7));
  return corpus;
}

Corpus ShmPackets() {
  const Ends ends = Connected();
  shm::Frame frame{.type = shm::Frame::kHello, .rank = 1};
  PELTON_CHECK_OK(shm::Send(ends.sender.get(), frame, "token"));
  frame.type = shm::Frame::kRegister;
  frame.region = 3;
  PELTON_CHECK_OK(shm::Send(ends.sender.get(), frame, "", 0));
  return {{"two", PacketsOf(ends.receiver.get())}, {"empty", fuzz::Packet(1, "")}};
}

Corpus Pages() {
  constexpr size_t kSlots = 3;
  Corpus corpus;
  for (const absl::Status& outcome : {absl::OkStatus(), absl::AbortedError("rank 1 aborted")}) {
    const absl::StatusOr<Descriptor> memory = LinkPage::Create(kSlots, 1);
    PELTON_CHECK_OK(memory.status());
    LinkPage::Map(memory->get(), kSlots)->SetOutcome(outcome);
    const auto mapping = shm::Mapping::Of(memory->get());
    corpus[outcome.ok() ? "new" : "aborted"] =
        std::string(reinterpret_cast<const char*>((*mapping)->data()), (*mapping)->size_bytes());
  }
  return corpus;
}

// A question or answer behind the memory that comes with it.
std::string WithMemory(bool is_answer, absl::string_view memory, const std::string& message,
                       uint8_t exponent = 0) {
  return Byte(is_answer ? 1 : 0) + Byte(exponent) + Chunk(memory) + message;
}

link::MakeModel AModel() {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(WorldSize(2));
  options.algorithm_options["codec"] = "one_bit";
  options.buckets = {0, 0};
  TensorSpec bias{.name = "fc.bias", .count = 2};
  TensorSpec weight{.name = "fc.weight", .count = 6, .columns = 3, .layout = "0 1"};
  return ToMessage(options, {weight, bias});
}

Corpus RoundsMessages() {
  SlotState state;
  state.key = "momentum";
  state.bytes.resize(8);
  const absl::StatusOr<StatesInMemory> in_memory = ToMemory({state});
  PELTON_CHECK_OK(in_memory.status());
  const std::string bytes(8, '\0');
  link::RoundsQuestion make, load, abort, replan;
  make.set_timeout_ns(1'000'000);
  *make.mutable_make() = AModel();
  *load.mutable_load_states() = in_memory->states;
  *abort.mutable_abort() = ToMessage(absl::AbortedError("stop"));
  replan.mutable_replan()->add_order(1);
  replan.mutable_replan()->add_order(0);
  constexpr int kExponent = 43;  // as many bytes, and none of them was ever written
  link::RoundsQuestion sparse = load;
  sparse.mutable_load_states()->mutable_states(0)->set_size_bytes(uint64_t{1} << kExponent);
  link::RoundsAnswer answer;
  *answer.mutable_status() = ToMessage(absl::InternalError("no"));
  answer.set_plan_hash(12345);
  *answer.mutable_states() = in_memory->states;
  return {{"make", WithMemory(false, "", make.SerializeAsString())},
          {"load", WithMemory(false, bytes, load.SerializeAsString())},
          {"sparse", WithMemory(false, bytes, sparse.SerializeAsString(), kExponent)},
          {"abort", WithMemory(false, "", abort.SerializeAsString())},
          {"replan", WithMemory(false, "", replan.SerializeAsString())},
          {"answer", WithMemory(true, bytes, answer.SerializeAsString())}};
}

// One event: the kind's place in coordinator.cc and its message, of rank `rank`.
template <typename Message>
std::string Event(uint8_t kind, Message message, int rank) {
  wire::ToProto(Caller{"job", Rank(rank), Generation(1)}, message.mutable_caller());
  return Byte(kind) + Chunk(message.SerializeAsString());
}

// Rank `rank` asks; an answer is waited for as long as `timeout_us` says.
std::string Asked(ControlQuestion question, int rank, int64_t timeout_us = 0) {
  proto::AskRequest request;
  wire::ToProto(std::move(question), request.mutable_question());
  request.set_timeout_us(timeout_us);
  return Event(1, request, rank);
}

Corpus Stores() {
  const KeyValueRequest get{.kind = KeyValueRequest::Kind::kGet, .keys = {"key"}};
  const KeyValueRequest set{.keys = {"key"}, .value = "value"};
  const KeyValueRequest add{.kind = KeyValueRequest::Kind::kAdd, .keys = {"n"}, .delta = 2};
  proto::LinkCall call;
  wire::ToProto(set, call.mutable_question());
  return {{"get_set", Asked(get, 0, 1000) + Asked(set, 1)},
          {"add_add", Asked(add, 0) + Asked(add, 1)},
          {"link_call", Byte(5) + Chunk(call.SerializeAsString())}};
}

Corpus CoordinatorEvents() {
  Corpus corpus = Stores();
  proto::JoinRequest join;
  wire::ToProto(JoinRequest{"other", Rank(0), WorldSize(1), kControlProtocolVersion,
                            HostIdentity{"boot", 1, 2}},
                &join);
  corpus["join"] = Byte(0) + Chunk(join.SerializeAsString());
  const AllGatherRequest gather{"plan", "hash", {Rank(0), Rank(1)}};
  corpus["gather"] = Asked(gather, 0) + Asked(gather, 1);
  const SelectPeersRequest select{
      CommunicatorId(4), {Rank(0), Rank(1)}, PeerPolicy::kRandomMatching, 3};
  corpus["select"] = Asked(select, 0) + Asked(select, 1);
  const FindPeerRequest find{CommunicatorId(4), {Rank(0), Rank(1)}, 1};
  corpus["find"] = Asked(find, 0, 1000) + Asked(find, 1, 1000);
  proto::HeartbeatRequest beat;
  beat.set_round(2);
  beat.set_round_trip_us(300);
  proto::ReportRequest report;
  report.set_code(13);
  report.set_message("a bad gradient");
  corpus["report"] = Event(2, beat, 0) + Event(3, report, 0);
  corpus["leave"] = Event(4, proto::LeaveRequest(), 1) + Asked(gather, 0);
  return corpus;
}

// One message of rank 1 to rank 0, without its key.
std::string NetworkMessage(const network::Header& header, absl::string_view payload,
                           bool is_rendezvous = false) {
  const absl::string_view bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return Byte(is_rendezvous ? 1 : 0) + std::string(bytes.substr(sizeof header.key)) +
         Chunk(payload);
}

Corpus NetworkMessages() {
  using network::MessageType;
  const network::Members peer("a job's token", CommunicatorId(3), Group::World(WorldSize(2)),
                              Rank(1));
  const std::string hello = NetworkMessage(peer.MakeHeader(MessageType::kHello, 0), "");
  network::Header data = peer.MakeHeader(MessageType::kData, 0);
  data.operation.kind = OperationKind::kSend;
  data.operation.dtype = DType::kUInt8;
  data.operation.peer = 0;
  data.operation.count = 64;  // what the target waits for
  data.operation.sequence = 1;
  network::Header second = data;
  second.operation.sequence = 2;
  second.flags = network::kNeedsAck;
  const std::string payload(64, 'x');
  network::Header abort = peer.MakeHeader(MessageType::kAbort, 0);
  const std::string reason = EncodeReason(absl::InternalError("the disk is full"), &abort);
  network::Header credit = peer.MakeHeader(MessageType::kCredit, 0);
  credit.operation.count = 1;
  return {{"data", hello + NetworkMessage(data, payload) + NetworkMessage(second, payload)},
          {"rendezvous", NetworkMessage(data, payload, true)},
          {"abort", NetworkMessage(abort, reason)},
          {"credit", NetworkMessage(credit, "")}};
}

void Write(const std::filesystem::path& folder, const Corpus& corpus) {
  std::filesystem::create_directories(folder);
  for (const auto& [name, bytes] : corpus) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  }
}

}  // namespace
}  // namespace pelton

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  const std::filesystem::path folder(arguments[1]);
  pelton::Write(folder / "coordinator", pelton::CoordinatorEvents());
  pelton::Write(folder / "link_record", pelton::LinkRecords());
  pelton::Write(folder / "link_socket", pelton::LinkPackets());
  pelton::Write(folder / "network_messages", pelton::NetworkMessages());
  pelton::Write(folder / "page", pelton::Pages());
  pelton::Write(folder / "rounds_messages", pelton::RoundsMessages());
  pelton::Write(folder / "shm_socket", pelton::ShmPackets());
}
