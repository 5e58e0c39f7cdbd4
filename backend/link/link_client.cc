#include "backend/link/link_client.h"

#include <poll.h>
#include <unistd.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/control/wire.h"
#include "comm/transport/shm/socket.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// The process that listens there, which is this user's.
absl::StatusOr<pid_t> DaemonOf(const LinkSocket& socket, const std::string& path) {
  ASSIGN_OR_RETURN(const shm::Credentials peer, shm::PeerOf(socket.descriptor()));
  if (peer.uid == geteuid()) return peer.pid;
  return absl::PermissionDeniedError(absl::StrCat("the daemon at ", path, " is that of user ",
                                                  peer.uid, ", this process is of user ",
                                                  geteuid()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkClient>> LinkClient::Attach(const LinkPlace& place,
                                                               absl::Time deadline) {
  std::unique_ptr<LinkClient> client(new LinkClient(place));
  proto::LinkHello hello;
  hello.set_purpose(proto::LinkHello::ATTACH);
  ASSIGN_OR_RETURN(client->attached_, client->Connect(hello, &client->welcome_, deadline));
  client->daemon_pid_ = client->welcome_.daemon_pid();
  LinkClient* const raw = client.get();
  client->reader_.Start(
      [raw](std::vector<pollfd>& entries) {
        entries.push_back({raw->attached_->descriptor(), POLLIN, 0});
        return raw->is_over_ ? std::nullopt : std::optional(absl::InfiniteFuture());
      },
      [raw](const std::vector<pollfd>& entries) {
        if (entries.front().revents != 0) raw->ReadNotice();
      });
  return client;
}

LinkClient::~LinkClient() {
  Leave(Clock::Real().Now() + absl::Seconds(1));
  reader_.Stop();
}

absl::Status LinkClient::Explain(const absl::Status& status) const {
  if (!absl::IsUnavailable(status) || daemon_pid_ == 0) return status;
  return absl::UnavailableError(absl::StrCat(
      "the pelton-daemon of rank ", place_.rank.value(), " (pid ", daemon_pid_.load(),
      ") is gone: ", status.message(), "; its log says why, and a new job starts a new one"));
}

absl::Status LinkClient::Silence(absl::Duration waited) const {
  // Before the welcome the others may be what it waits for.
  const char* const others =
      attached_ == nullptr ? "other ranks' trainers have come, and whether " : "";
  return absl::DeadlineExceededError(
      absl::StrCat("the pelton-daemon of rank ", place_.rank.value(), " (pid ", daemon_pid_.load(),
                   ") has not answered for ", absl::ToInt64Milliseconds(waited) / 100 * 0.1,
                   " s; look whether ", others, "it is stopped or stuck, and end the job"));
}

// No exchange outlasts the link's end: either this finds the reason, or Deliver, which gives the
// reason first, finds the socket and shuts it down.
absl::Status LinkClient::Exchange(LinkSocket& socket, absl::FunctionRef<absl::Status()> messages) {
  const absl::Time began = Clock::Real().Now();
  busy_.Add(&socket);
  const absl::Status met = ended_.is_given() ? ended_.Get() : messages();
  busy_.Remove(&socket);
  if (met.ok() || ended_.is_given()) return met.ok() ? met : ended_.Get();
  return absl::IsDeadlineExceeded(met) ? Silence(Clock::Real().Now() - began) : Explain(met);
}

absl::StatusOr<std::unique_ptr<LinkSocket>> LinkClient::Connect(proto::LinkHello hello,
                                                                proto::LinkWelcome* welcome,
                                                                absl::Time deadline,
                                                                absl::Duration grace) {
  hello.set_version(kLinkProtocolVersion);
  hello.set_job(place_.job);
  hello.set_rank(place_.rank.value());
  hello.set_world_size(place_.world_size.value());
  hello.set_pid(getpid());
  hello.set_attachment(welcome_.attachment());
  hello.set_timeout_us(wire::TimeoutToProto(Clock::Real().Now(), deadline));
  ASSIGN_OR_RETURN(Descriptor connected, LinkSocket::Connect(place_.path, deadline));
  auto socket = std::make_unique<LinkSocket>(std::move(connected));
  // A child of this process would keep the connection open beyond its end.
  CloseInChildren(socket->descriptor());
  ASSIGN_OR_RETURN(const pid_t daemon, DaemonOf(*socket, place_.path));
  if (attached_ == nullptr) daemon_pid_ = daemon;
  RETURN_IF_ERROR(Exchange(*socket, [&] {
    const absl::Status sent = socket->Send(hello, deadline);
    return sent.ok() ? socket->Receive(*welcome, deadline + grace) : sent;
  }));
  if (welcome->code() != 0) return wire::ErrorFromProto(welcome->code(), welcome->message());
  return socket;
}

absl::StatusOr<std::unique_ptr<LinkSocket>> LinkClient::Borrow(absl::Time deadline,
                                                               absl::Duration grace) {
  RETURN_IF_ERROR(ended_.Get());
  std::optional<std::unique_ptr<LinkSocket>> idle = idle_.TakeNewest();
  if (idle.has_value()) return *std::move(idle);
  proto::LinkHello hello;
  hello.set_purpose(proto::LinkHello::CALL);
  proto::LinkWelcome welcome;
  return Connect(hello, &welcome, deadline, grace);
}

void LinkClient::GiveBack(std::unique_ptr<LinkSocket> socket) {
  idle_.Push(std::move(socket));
  // The thread that ended the link may have emptied the list before the push.
  if (ended_.is_given()) idle_.TakeAll();
}

absl::StatusOr<proto::LinkReply> LinkClient::CallOver(LinkSocket& socket,
                                                      const proto::LinkCall& call,
                                                      absl::Time deadline, absl::Duration grace) {
  proto::LinkReply reply;
  RETURN_IF_ERROR(Exchange(socket, [&] {
    const absl::Status sent = socket.Send(call, deadline + grace);
    return sent.ok() ? socket.Receive(reply, deadline + grace) : sent;
  }));
  return reply;
}

absl::StatusOr<proto::LinkReply> LinkClient::Call(proto::LinkCall call, absl::Time deadline,
                                                  absl::Duration grace) {
  call.set_timeout_us(wire::TimeoutToProto(Clock::Real().Now(), deadline));
  // One that was idle may have been closed meanwhile; but no call is sent twice.
  ASSIGN_OR_RETURN(std::unique_ptr<LinkSocket> socket, Borrow(deadline, grace));
  ASSIGN_OR_RETURN(proto::LinkReply reply, CallOver(*socket, call, deadline, grace));
  GiveBack(std::move(socket));
  if (reply.code() != 0) return wire::ErrorFromProto(reply.code(), reply.message());
  return reply;
}

void LinkClient::Deliver(const proto::Order& order) {
  if (has_left_) return;
  // After an abort no call that waits at the daemon can succeed, so this end shuts its sockets down
  // without telling the daemon. Which operations need a rank that has left is for the session to
  // decide.
  if (order.kind() == proto::Order::ABORT &&
      ended_.Give(wire::ErrorFromProto(order.code(), order.message()))) {
    busy_.ForEach([](LinkSocket* socket) { socket->Shutdown(); });
    idle_.TakeAll();
  }
  notices_.Push(order);
  notices_.Deliver();
}

void LinkClient::ReadNotice() {
  proto::LinkNotice notice;
  const absl::Status received = attached_->Receive(notice, absl::InfinitePast());
  if (received.ok() && notice.has_order()) Deliver(notice.order());
  if (received.ok() || absl::IsDeadlineExceeded(received)) return;
  is_over_ = true;
  const absl::Status reason = Explain(received);
  proto::Order lost;
  lost.set_kind(proto::Order::ABORT);
  lost.set_culprit(place_.rank.value());
  lost.set_code(static_cast<int32_t>(reason.code()));
  lost.set_message(std::string(reason.message()));
  Deliver(lost);
}

void LinkClient::SendRound(Round round) {
  proto::LinkNotice notice;
  notice.set_round(round.value());
  (void)attached_->Send(notice, Clock::Real().Now());  // the next round's comes soon
}

void LinkClient::Leave(absl::Time deadline) {
  if (has_left_.exchange(true)) return;
  ended_.Give(absl::FailedPreconditionError("this trainer has left its daemon"));
  idle_.TakeAll();
  busy_.ForEach([](LinkSocket* socket) { socket->Shutdown(); });
  if (attached_ == nullptr) return;
  proto::LinkNotice goodbye;
  goodbye.set_leaves(true);
  (void)attached_->Send(goodbye, deadline);  // a daemon that is gone needs none
  attached_->Shutdown();
}

}  // namespace pelton
