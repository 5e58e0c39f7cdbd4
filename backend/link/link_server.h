// A daemon's door for trainers and tools.
#ifndef PELTON_BACKEND_LINK_LINK_SERVER_H_
#define PELTON_BACKEND_LINK_LINK_SERVER_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/link/link_socket.h"
#include "backend/link/model_server.h"
#include "backend/link/served_communicator.h"
#include "backend/link/set_up_log.h"
#include "backend/link/trainer_seat.h"
#include "core/base/sharing.h"
#include "core/base/sync.h"
#include "core/base/threads.h"
#include "proto/link.pb.h"

namespace pelton {

// Serves one trainer at a time over the Unix socket at `path`, and any tool. Whatever comes through
// the door, it refuses what is not right with a reason and goes on.
// Threads: any; it has one that accepts and one for each connection. Owns: the socket and its path,
// the connections, the trainer's communicators.
class LinkServer {
 public:
  static constexpr size_t kMostConnections = 1024;
  // A connection that does not say what it is for is closed after it.
  static constexpr absl::Duration kHelloPatience = absl::Seconds(5);

  // Listens at `path`, where strangers wait until a server serves them. A socket that an earlier
  // daemon has left there is replaced. Errors: AlreadyExists: a daemon lives there; those of
  // LinkSocket::Listen.
  static absl::StatusOr<Descriptor> Listen(const std::string& path);
  // Serves every process that connects to `listener`. `backend` has joined the job; it is borrowed
  // and outlives the server.
  // `trainer_grace`: how long the peers of a trainer that has died wait for another one in its
  // place, if that can go on where it was; zero: its death ends them.
  static std::unique_ptr<LinkServer> Start(Backend* backend, const std::string& path,
                                           Descriptor listener,
                                           absl::Duration trainer_grace = absl::ZeroDuration());
  // Ends all connections, and waits for their threads.
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  proto::LinkStatus Status() const;
  // A tool asks for the daemon's end, or has done so.
  void RequestStop() { stop_requested_ = true; }
  bool stop_requested() const { return stop_requested_.load(); }
  // Returns once the rounds and operations that are under way now have ended on this rank, whether
  // or not later ones have begun. Blocks: until then, or `deadline`. Errors: DeadlineExceeded:
  // names what has not ended.
  absl::Status AwaitStepEnd(absl::Time deadline) const;
  // Has this rank's trainer told that its daemon ends, and why; with an error, which ends what is
  // under way, the trainers of all other ranks, too. Blocks: until it has gone, or `deadline`.
  void EndTrainers(const absl::Status& step, absl::Time deadline);
  const TrainerSeat& seat() const { return seat_; }

 private:
  // Threads: its own and the one that accepts. Owns: the thread.
  struct Connection {
    std::shared_ptr<LinkSocket> socket;  // shared: it is shut down by the server's end
    std::thread thread;
    std::atomic<bool> is_over{false};
  };

  // A communicator for an heir of the trainer that had it. Threads: a value. Owns: its share.
  struct LeftCommunicator {
    std::vector<int32_t> members;
    uint32_t generation;
    uint32_t number;  // the line's
    ServedCommunicator::Line line;
  };

  LinkServer(Backend* backend, std::string path, Descriptor listener, absl::Duration trainer_grace);

  // What the acceptor waits for, and until when: what has ended is cleared away then, too.
  absl::Time Enter(std::vector<pollfd>& entries);
  void Accept();
  bool ShutDownAll();
  void Serve(Descriptor accepted);
  void Reap();
  void ServeConnection(const std::shared_ptr<LinkSocket>& socket);
  absl::Status CheckHello(const LinkSocket& socket, const proto::LinkHello& hello) const;
  void ServeTrainer(const proto::LinkHello& hello, const std::shared_ptr<LinkSocket>& socket);
  absl::Status ReadNotices(LinkSocket& socket);
  // Whether another trainer can take the place of one that has died.
  bool MayHaveHeir(const TrainerSeat::Trainer& trainer) const;
  void AwaitHeir(const TrainerSeat::Trainer& gone);
  // The model that a trainer has left, for its heir. Blocks, Errors: see ModelServerOptions.
  absl::StatusOr<std::unique_ptr<ModelServer>> TakeLeft(uint64_t attachment,
                                                        const std::string& name,
                                                        absl::Time deadline);
  // Ends what a trainer has left, and lets it go.
  void ClearLeft(const absl::Status& reason);
  void BeginSetUp(const TrainerSeat::Trainer& trainer);
  proto::LinkReply AnswerFor(const TrainerSeat::Trainer& trainer, const proto::LinkCall& call);
  void TakeMark(proto::LinkMark mark);
  absl::StatusOr<ServedCommunicator::Line> LineFor(const TrainerSeat::Trainer& trainer,
                                                   const proto::LinkHello& hello);
  std::string GoneText(const TrainerSeat::Trainer& trainer) const;
  void ServeCalls(const proto::LinkHello& hello, LinkSocket& socket);
  void AnswerMissing(const proto::LinkMissing& question, proto::LinkReply* reply) const;
  absl::StatusOr<std::unique_ptr<WatchedCommunicator>> OpenFor(const TrainerSeat::Trainer& trainer,
                                                               const proto::LinkHello& hello);
  void ServeCommunicator(const proto::LinkHello& hello, const std::shared_ptr<LinkSocket>& socket);
  void ServeModel(const proto::LinkHello& hello, const std::shared_ptr<LinkSocket>& socket);
  void Welcome(LinkSocket& socket, proto::LinkWelcome welcome, const absl::Status& status) const;

  Backend& backend_;
  const std::string path_;
  const Descriptor listener_;
  const absl::Duration trainer_grace_;
  TrainerSeat seat_;
  std::atomic<bool> stops_{false};
  std::atomic<bool> stop_requested_{false};
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> set_up_is_over_{false};
  std::atomic<uint64_t> snapshots_{0};  // of trainers, that count

  mutable Mutex mutex_;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  // Null: its trainer has gone, and it is being taken down.
  std::map<uint32_t, ServedCommunicator*> communicators_ ABSL_GUARDED_BY(mutex_);
  uint32_t last_communicator_ ABSL_GUARDED_BY(mutex_) = 0;
  ModelShelf shelf_ ABSL_GUARDED_BY(mutex_);
  std::list<LeftCommunicator> left_ ABSL_GUARDED_BY(mutex_);  // by number
  SetUpLog set_up_ ABSL_GUARDED_BY(mutex_);
  // The last attachment whose trainer has died in the middle of a communicator's operation.
  uint64_t broken_ ABSL_GUARDED_BY(mutex_) = 0;
  EndReason own_end_;  // why this daemon closes its connections

  bool lacks_descriptors_ = false;        // the acceptor's
  PollThread acceptor_{"pelton-accept"};  // last: its callbacks use the others
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINK_SERVER_H_
