// The composition root of a process: joins the job, opens the transports, and ends everything that
// waits when a rank is lost.
#ifndef PELTON_BACKEND_BACKEND_H_
#define PELTON_BACKEND_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/hosts.h"
#include "backend/link/attach.h"
#include "backend/session.h"
#include "backend/trace_file.h"
#include "backend/watched_communicator.h"
#include "comm/collectives/selection.h"
#include "comm/communicator.h"
#include "comm/control/control.h"
#include "comm/control/coordinator_server.h"
#include "comm/control/tls_options.h"
#include "comm/group.h"
#include "comm/hierarchy/hierarchical_transport.h"
#include "comm/transport/transport.h"
#include "core/actor/actor_ref.h"
#include "core/actor/executor.h"
#include "core/actor/pool_executor.h"
#include "core/actor/thread_executor.h"
#include "core/base/absences.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/base/sharing.h"
#include "core/base/sync.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"
#include "core/round/round_sight.h"

namespace pelton {

// A model as people see it from outside.
// Threads: a value. Owns: its texts.
struct ModelSight {
  std::string name;
  absl::StatusOr<RoundSight> round;  // an error: why it is not known
  uint64_t sent_bytes = 0;
};

// Blocks: until `deadline`.
using ModelLook = std::function<ModelSight(absl::Time deadline)>;

struct BackendOptions {
  Rank rank;
  WorldSize world_size{1};
  std::string job = "default";
  std::string token;                // the job's secret; at least 16 bytes
  std::string coordinator_address;  // "<host>:<port>"
  bool serves_coordinator = false;  // on the address above; for one rank of the job
  TlsOptions tls;                   // this rank's certificate for the control plane, if it has any
  std::string wire = "tcp";         // the transport between hosts, by its registered name
  std::string interface;            // network interface of that wire; "": towards the coordinator
  std::string host_label;           // ranks with different ones share no memory, wherever they are
  std::string schedules;            // rows for SelectionTable::Parse, used between hosts
  absl::Duration operation_timeout = limits::kDefaultOperationTimeout;
  absl::Duration join_timeout = limits::kDefaultJoinTimeout;
  // How long a rank may be silent, because a debugger has stopped it for instance, before it counts
  // as lost; the same on all ranks.
  absl::Duration heartbeat_timeout = limits::kHeartbeatTimeout;
};

// Serves a job's coordinator at "<host>:<port>", whose host is a name or an address of this one, an
// IPv6 address in brackets; port 0 takes a free one. Errors: InvalidArgument: `address` is not of
// that form; those of CoordinatorServer::Start.
absl::StatusOr<std::unique_ptr<CoordinatorServer>> ServeCoordinatorAt(
    const std::string& address, const std::string& token, const TlsOptions& tls = {},
    absl::Duration heartbeat_timeout = limits::kHeartbeatTimeout);

// Threads: any, unless a method says otherwise. Owns: the control connection, the coordinator if it
// serves one, and the transports; everything it hands out must go before it does.
class Backend {
 public:
  // Joins the job and connects to every rank: by shared memory inside a host, by the wire between
  // hosts. Blocks: until the world is complete, or the join timeout. Errors: DeadlineExceeded:
  // names the missing ranks; Unimplemented: several hosts, and this build has no such wire; those
  // of Control::Join and of the transports.
  static absl::StatusOr<std::unique_ptr<Backend>> Start(const BackendOptions& options);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const BackendOptions& options() const { return options_; }
  Rank rank() const { return options_.rank; }
  WorldSize world_size() const { return options_.world_size; }
  Control& control() { return *control_; }

  // Of the processes that have joined, by rank.
  const Membership& membership() const { return membership_; }
  // Makes a model of this process one that people see; `look` is called until Hide has returned,
  // which takes the number that this gives. It costs the model nothing while nobody looks. Blocks:
  // while somebody does.
  int64_t Show(ModelLook look);
  void Hide(int64_t number);
  // All of them, in the order of their making. Blocks: until `deadline`, while one does not answer.
  std::vector<ModelSight> LookAtModels(absl::Time deadline) const;
  // Whether this is a trainer in the place of one that has died, whose peers go on.
  bool is_heir() const { return is_heir_; }
  // Tells this rank's daemon, if there is one, how far the training has come, which says what an
  // heir is given. Blocks: until `deadline`. Errors: those of a call to the daemon.
  absl::Status Tell(TrainerMark mark, absl::Time deadline);
  // Ranks whose trainer is awaited anew. Threads: any.
  Absences& absences() { return absences_; }
  const Absences& absences() const { return absences_; }
  const HostMap& hosts() const { return hosts_; }
  // World ranks on this rank's host, ascending, this one included: those that have proved it.
  std::vector<Rank> host_ranks() const { return hosts_.RanksWith(rank()); }
  // Why ranks that seemed to be on this host are not counted to it; "": there are none.
  const std::string& host_warning() const { return host_warning_; }

  // Opens a communicator of its own traffic class; collective over the group, in the same order on
  // all its ranks, whatever the other ranks do. It is aborted when any rank of the job is lost or a
  // member leaves, and reaches shared regions. Must be destroyed before the backend. Blocks: until
  // all have called, or the join timeout, and while another thread opens. Errors: InvalidArgument:
  // what CheckGroup says; DeadlineExceeded: names the members that have not called; Aborted: a
  // member has left; failure().
  absl::StatusOr<std::unique_ptr<WatchedCommunicator>> Open(const Group& group) {
    return Open(group, Device{});
  }
  // The same for memory of `device`, which is of the same kind on all members; the backend of a GPU
  // is made at the first use, in this process even where the rank has a daemon, which is told that
  // no other trainer can go on in the place of this one. `schedules`: rows that go before those of
  // the options, the same on all members; of use between hosts, for the hosts' memory. Errors: also
  // InvalidArgument: a row is none, or the members' rows differ; those of the device's transport:
  // no such device, no library of its.
  absl::StatusOr<std::unique_ptr<WatchedCommunicator>> Open(const Group& group, Device device,
                                                            const std::string& schedules = "");

  // Memory that the ranks of this host may reach directly in every operation from now on; it must
  // outlive the backend. Blocks: never for long.
  void Share(const Region& region);

  // Why the job failed; OK while it has not.
  absl::Status failure() const { return failure_.Get(); }
  // Why the ranks of `group` can do nothing together any more: failure(), or a member has left.
  // Blocks: for one of the session's turns.
  absl::Status WhyNotWith(const Group& group) const;
  // The root of this membership's actors: a failure of one that is spawned under it ends all that
  // waits (core/actor/spawn.h).
  const ActorRef<Session>& session() const { return session_; }

  // Has the other ranks told that this one failed. Blocks: never.
  void Report(const absl::Status& reason);

  // Calls `spawn` with the executor of actors whose turns may block, such as those that call a
  // user's functions. Its threads start with the first call of this. Everything that lives there is
  // told to stop before the backend is. Blocks: never for long. Errors: FailedPrecondition: this
  // rank has left the job.
  absl::Status OnPoolForBlocking(absl::FunctionRef<void(Executor& pool)> spawn);

  // Leaves the job. Idempotent; the destructor calls it with limits::kStopTimeout. Blocks: until
  // `deadline`.
  absl::Status Stop(absl::Time deadline);

 private:
  explicit Backend(const BackendOptions& options) : options_(options) {}

  absl::Status Join();
  void StartSession();
  void EndPool(absl::Time deadline);
  void Obey(const Order& order, SessionDoor* door);
  absl::Status Connect(absl::Time deadline);
  absl::StatusOr<std::unique_ptr<Transport>> ConnectHosts(absl::Time deadline);
  absl::StatusOr<SelectionTable> AgreeOnSchedules(absl::Time deadline);
  absl::StatusOr<std::unique_ptr<WatchedCommunicator>> OpenAmong(const Group& group, Device device,
                                                                 const std::string& schedules);
  // A number that no other communicator of the job has, the same on all members, for one of
  // `schedules`, which are to be the same, too.
  absl::StatusOr<CommunicatorId> AgreeOnId(const Group& group, const std::string& schedules,
                                           absl::Time deadline);
  // What a communicator of `schedules` goes by. Errors: InvalidArgument: a row is none.
  absl::Status UseSchedules(CommunicatorId id, const std::string& schedules);
  absl::StatusOr<Transport*> TransportOf(Device device, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(opening_);
  // The session's answer, where it has not ended. Blocks: for one of its turns. Errors: the
  // answer's; failure(); FailedPrecondition: this rank has left the job.
  template <typename Question>
  absl::Status AskSession(Question question) const;
  absl::Status HasLeft() const;

  const BackendOptions options_;
  std::unique_ptr<TraceFile> trace_;  // null unless PELTON_TRACE names it; written last
  FailureNote failure_;
  Absences absences_;
  bool is_heir_ = false;
  // Tells this rank's daemon how far the training has come; empty without one.
  std::function<absl::Status(TrainerMark mark, absl::Time deadline)> mark_;
  std::unique_ptr<CoordinatorServer> coordinator_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Transport> transport_;
  HostsTransport* hosts_transport_ = nullptr;  // the same one, where there are several hosts
  Membership membership_;
  HostMap hosts_;
  std::string host_warning_;
  struct Look {
    int64_t number;
    ModelLook look;
  };
  SharedList<Look> looks_;  // a model that ends waits until nobody looks at it any more
  std::atomic<int64_t> last_look_ = 0;
  Turn opening_;  // a transport opens for one thread at a time
  // By the index of the device.
  std::map<int32_t, std::unique_ptr<Transport>> gpus_ ABSL_GUARDED_BY(opening_);

  Turn making_pool_;
  std::unique_ptr<PoolExecutor> pool_ ABSL_GUARDED_BY(making_pool_);  // null until it is needed

  std::atomic<bool> stopped_ = false;
  ActorRef<Session> session_;
  std::unique_ptr<SessionDoor> door_;         // null until there is a session
  std::unique_ptr<ThreadExecutor> executor_;  // last: the session uses the others
};

}  // namespace pelton

#endif  // PELTON_BACKEND_BACKEND_H_
