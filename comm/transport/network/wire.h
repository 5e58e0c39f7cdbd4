// What ranks of different hosts say to each other: one fixed header before every message, and how a
// member's is told from a stranger's.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_WIRE_H_
#define PELTON_COMM_TRANSPORT_NETWORK_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "comm/group.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton::network {

// The numbers are part of the wire format: append only.
enum class MessageType : uint8_t {
  kData = 1,     // a send with its bytes; `operation` is the send
  kCredit = 2,   // `operation.count` messages, `operation.sequence` bytes of sends were taken
  kAck = 3,      // the send `ticket` was taken
  kRefusal = 4,  // the send `ticket` met the receive `operation`, which differs
  kAbort = 5,    // the sender ends the communicator: EncodeReason
  kBye = 6,      // the sender closes the communicator in good order
  kHello = 7,    // the connection works; answered in kind
  kValue = 8,    // for Intercom::Exchange; answered in kind
};

// Proves that a message comes from a rank that holds the job's token, and on which path. It is a
// password, not a signature, so an attacker that can read the wire can repeat it.
using MessageKey = std::array<uint8_t, 16>;

// Where a message may travel; each path has a key of its own, so that a message that strays into
// another communicator, generation (GEN-1) or rank is refused like a stranger's.
struct Path {
  CommunicatorId communicator;
  Generation generation;
  Rank from;  // in the group
  Rank to;
};

// HMAC-SHA256 of the path under the token, cut to 128 bits.
MessageKey DeriveKey(absl::string_view job_token, const Path& path);
// Takes the same time wherever the keys differ.
bool SameKey(const MessageKey& a, const MessageKey& b);

// HMAC-SHA256 of `text` under the token, for what is not a message.
std::string Sign(absl::string_view job_token, absl::string_view text);

struct Header {
  MessageKey key = {};
  MessageType type = MessageType::kData;
  uint8_t flags = 0;
  uint16_t reserved = 0;
  uint32_t source = 0;  // rank in the group
  uint64_t ticket = 0;  // of the sender's operation
  Operation operation;
};
static_assert(sizeof(Header) == 96, "part of the wire format");
static_assert(std::is_trivially_copyable_v<Header>);

inline constexpr uint8_t kNeedsAck = 1;  // kData: the sender waits for kAck
inline constexpr uint8_t kIsDeath = 2;   // kAbort: the reason reads the same on every rank
inline constexpr uint8_t kIsAnswer = 4;  // kHello, kValue: the receiver's one has arrived

// The most that a message other than kData carries behind its header.
inline constexpr size_t kMaxNoteBytes = 8192;

// `reason` as a kAbort's code and text.
std::string EncodeReason(const absl::Status& reason, Header* header);
// As the receiver reports it: "rank N aborted: <reason>".
absl::Status DecodeReason(const Header& header, absl::string_view text, Rank source);

// Threads: immutable once made. Owns: the keys of all paths from and to this rank.
class Members {
 public:
  // `rank`: in the group. `near`: ranks of the world with which nothing is exchanged here, because
  // another transport reaches them.
  Members(const std::string& job_token, CommunicatorId id, Group group, Rank rank,
          const std::vector<Rank>& near = {});

  CommunicatorId id() const { return id_; }
  Generation generation() const { return group_.generation; }
  int rank() const { return rank_.value(); }  // in the group
  int size() const { return group_.size().value(); }
  WorldSize world_size() const { return group_.size(); }
  const Group& group() const { return group_; }
  Rank WorldRankOf(int member) const { return group_.members[static_cast<size_t>(member)]; }

  // Whether messages go to `member` and come from it: it is not this rank, and not near.
  bool IsPeer(int member) const { return is_peer_[static_cast<size_t>(member)]; }

  // A header of this rank to `peer`.
  Header MakeHeader(MessageType type, int peer) const;
  // Whether a header was made by MakeHeader on the member that it names, for this rank.
  bool IsGenuine(const Header& header) const;

 private:
  const CommunicatorId id_;
  const Group group_;
  const Rank rank_;
  std::vector<MessageKey> outgoing_;  // by peer
  std::vector<MessageKey> incoming_;
  std::vector<bool> is_peer_;
};

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_WIRE_H_
