// A trainer's end of the link to the daemon of its rank.
#ifndef PELTON_BACKEND_LINK_LINK_CLIENT_H_
#define PELTON_BACKEND_LINK_LINK_CLIENT_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backend/link/link_socket.h"
#include "core/base/ids.h"
#include "core/base/inbox.h"
#include "core/base/sharing.h"
#include "core/base/threads.h"
#include "proto/link.pb.h"

namespace pelton {

inline constexpr uint32_t kLinkProtocolVersion = 6;
// Before the path of a daemon's socket, where otherwise a coordinator's address stands.
inline constexpr absl::string_view kLinkAddressPrefix = "unix:";

// Where a trainer attaches, and as what. Threads: a value. Owns: its strings.
struct LinkPlace {
  std::string path;  // of the daemon's socket
  std::string job;
  Rank rank;
  WorldSize world_size;
};

// Threads: any. Owns: the connections.
class LinkClient {
 public:
  // Called by a thread of the client for each order: with what the daemon says, or with Unavailable
  // once it is gone. One of a trainer that has left ends no calls. Must not block.
  using NoticeCallback = Inbox<proto::Order>::Callback;

  // Attaches to the daemon, which has the trainers of all ranks meet. Blocks: until they have, or
  // `deadline`. Errors: NotFound: nobody listens there; AlreadyExists: the rank has a trainer;
  // FailedPrecondition: another version, job, rank or world size; PermissionDenied: another user's
  // daemon; DeadlineExceeded: names the ranks without a trainer; Unavailable: the daemon died.
  static absl::StatusOr<std::unique_ptr<LinkClient>> Attach(const LinkPlace& place,
                                                            absl::Time deadline);
  ~LinkClient();
  LinkClient(const LinkClient&) = delete;
  LinkClient& operator=(const LinkClient&) = delete;

  const proto::LinkWelcome& welcome() const { return welcome_; }
  Rank rank() const { return place_.rank; }

  // Sets the receiver of notices; notices that came earlier are delivered at once. Blocks: while a
  // notice is delivered.
  void OnNotice(NoticeCallback callback) { notices_.SetCallback(std::move(callback)); }

  // The daemon keeps deadlines; this long after one the trainer does without its answer.
  static constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

  // One call at the daemon. Blocks: until its answer, which it gives by `deadline`, or `grace`
  // longer. Errors: the call's; Unavailable: the daemon, or the trainer of another rank, is gone;
  // DeadlineExceeded: also names a daemon that does not answer.
  absl::StatusOr<proto::LinkReply> Call(proto::LinkCall call, absl::Time deadline,
                                        absl::Duration grace = kAnswerGrace);

  // A connection of its own for `hello`, whose answer goes to `welcome`. Errors: as Attach.
  absl::StatusOr<std::unique_ptr<LinkSocket>> Connect(proto::LinkHello hello,
                                                      proto::LinkWelcome* welcome,
                                                      absl::Time deadline,
                                                      absl::Duration grace = kAnswerGrace);

  // Tells the daemon the round that this trainer is in. Blocks: never.
  void SendRound(Round round);

  // Tells the daemon that this trainer goes in good order, and ends the link.
  void Leave(absl::Time deadline);

  // `status` of a connection's end, with the daemon's name.
  absl::Status Explain(const absl::Status& status) const;
  // That the daemon has not answered for so long.
  absl::Status Silence(absl::Duration waited) const;

 private:
  static constexpr size_t kMostIdle = 8;

  LinkClient(const LinkPlace& place) : place_(place) {}

  // Takes in a notice that has come, or that none comes any more.
  void ReadNotice();
  void Deliver(const proto::Order& order);
  absl::StatusOr<std::unique_ptr<LinkSocket>> Borrow(absl::Time deadline, absl::Duration grace);
  absl::StatusOr<proto::LinkReply> CallOver(LinkSocket& socket, const proto::LinkCall& call,
                                            absl::Time deadline, absl::Duration grace);
  // Makes an exchange of messages over `socket`, which the link's end ends. Errors: why it failed.
  absl::Status Exchange(LinkSocket& socket, absl::FunctionRef<absl::Status()> messages);
  void GiveBack(std::unique_ptr<LinkSocket> socket);

  const LinkPlace place_;
  proto::LinkWelcome welcome_;
  // The one that the welcome names; before it that of the process that listens, or 0.
  std::atomic<pid_t> daemon_pid_{0};
  std::unique_ptr<LinkSocket> attached_;
  bool is_over_ = false;  // the reader's: no notice comes any more

  std::atomic<bool> has_left_{false};
  EndReason ended_;  // why no call can succeed
  SharedQueue<std::unique_ptr<LinkSocket>> idle_{kMostIdle};
  SharedList<LinkSocket*> busy_;

  Inbox<proto::Order> notices_;
  PollThread reader_{"pelton-notices"};  // last: its callbacks use the others
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINK_CLIENT_H_
