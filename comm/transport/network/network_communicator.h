// One rank's end of a group of ranks on different hosts: sends and receives. Collectives are made
// of these by comm/collectives.
#ifndef PELTON_COMM_TRANSPORT_NETWORK_NETWORK_COMMUNICATOR_H_
#define PELTON_COMM_TRANSPORT_NETWORK_NETWORK_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/network/conversation.h"
#include "comm/transport/network/intercom.h"
#include "core/base/sharing.h"
#include "core/base/sync.h"

namespace pelton::network {

// Threads and contract: as Communicator. The mutex is the network's, because a thread that drives
// another communicator may read what came for this one. Where it is alone, the thread that runs the
// operations pays some 20 ns for it. Owns: the conversation, until it hands that to `on_close`.
class NetworkCommunicator final : public Communicator {
 public:
  // Called by the destructor, first so that nobody aborts this communicator any more, then with the
  // conversation if peers may still want something of it.
  using OnClose = std::function<void(NetworkCommunicator*, std::unique_ptr<Conversation>)>;

  static absl::StatusOr<std::unique_ptr<NetworkCommunicator>> Create(
      std::unique_ptr<Conversation> conversation, Intercom& intercom, OnClose on_close);
  NetworkCommunicator(std::unique_ptr<Conversation> conversation, Intercom& intercom,
                      OnClose on_close);
  ~NetworkCommunicator() override;

  Rank rank() const override { return Rank(members_.rank()); }
  WorldSize world_size() const override { return members_.world_size(); }
  CommunicatorId id() const override { return members_.id(); }
  int spins() const override;
  // Any memory of this process can be sent.
  absl::Status Register(const Region&) override { return absl::OkStatus(); }
  void Deregister(RegionId) override {}

  absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag) override;
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override;
  void Park(absl::Time until) override;
  void Wake() override;
  // Blocks: for at most a fifth of a second, counted from Announce, where a peer does not take the
  // news.
  void Abort(const absl::Status& reason) override;
  // The first half of Abort: the peers are told, as far as they take it at once. So that of many
  // communicators all can be announced before the first is waited for. Blocks: never.
  void Announce(const absl::Status& reason);
  // Tells the peers that this rank launches nothing any more. To be called until true: it has left
  // then. Blocks: never.
  bool SayGoodbye();
  std::vector<Rank> Missing() const override;

 private:
  enum class Stage { kOpen, kTelling, kClosed };

  void ListenForRouse();
  // Readies this communicator for a park: what to sleep on, or nothing if there is no need to.
  std::optional<int> BeginPark() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ProgressLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AdvanceAbort() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the mutex for one step at a time: other communicators need it, too.
  void FinishAbort();
  // What a communicator leaves to the transport when it closes; null: nothing.
  std::unique_ptr<Conversation> TakeConversation();
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Looks whether what happened on the wire ends this communicator.
  void Examine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExamineLoss(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where the reason comes from, which decides which rank tells the peers of it and how they report
  // it.
  enum class Origin { kHere, kPeer, kDeath };
  void Throw(const absl::Status& reason, Origin origin) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Intercom& intercom_;
  const OnClose on_close_;
  Descriptor wake_;
  Mutex& mutex_;
  bool is_parked_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Conversation> conversation_ ABSL_GUARDED_BY(mutex_);
  const Members& members_;  // the conversation's
  uint64_t events_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kOpen;
  std::optional<absl::Time> since_ ABSL_GUARDED_BY(mutex_);    // of telling
  std::optional<absl::Time> suspect_ ABSL_GUARDED_BY(mutex_);  // since a connection broke

  EndReason ended_;
  Origin origin_ ABSL_GUARDED_BY(mutex_) = Origin::kHere;  // of what ended_ says
};

}  // namespace pelton::network

#endif  // PELTON_COMM_TRANSPORT_NETWORK_NETWORK_COMMUNICATOR_H_
