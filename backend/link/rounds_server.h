// The rounds of a model on the daemon's side: the page's words become marks and waits.
#ifndef PELTON_BACKEND_LINK_ROUNDS_SERVER_H_
#define PELTON_BACKEND_LINK_ROUNDS_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/link/link_socket.h"
#include "backend/link/page.h"
#include "backend/link/rounds_desk.h"
#include "backend/link/rounds_progress.h"
#include "backend/link/trainer_regions.h"
#include "core/actor/promise.h"
#include "core/actor/wait_hook.h"
#include "core/actor/waker.h"
#include "core/base/ids.h"
#include "core/base/sharing.h"
#include "core/round/model_rounds.h"
#include "proto/link_rounds.pb.h"

namespace pelton {

// Threads: a value, moved into Start. Owns: the socket.
struct RoundsServerOptions {
  std::shared_ptr<LinkSocket> socket;  // shared: the server that accepted it may shut it down
  std::string model_name;
  Rank rank;                // of this process in the world, for reports
  Rank rank_in_group;       // told to the trainer
  uint64_t attachment = 1;  // the number of this attachment
  // What the trainer registers for standalone tensors; outlives the rounds, which use it. Null: its
  // plan has none.
  TrainerRegions* regions = nullptr;
  // What this rank has sent for the model so far; may be empty.
  std::function<uint64_t()> sent_bytes;
  // A trainer that dies leaves the open round to another one: see TakeProgress. Costs a copy of
  // each round's results.
  bool keeps_progress = false;
  // How many snapshots of the trainer's count so far; outlives the server. Null: nobody knows.
  const std::atomic<uint64_t>* snapshots = nullptr;
  // What the trainer before has left, and the round that this one goes on with; nothing: it is the
  // model's first.
  std::optional<RoundsProgress> progress = std::nullopt;
  Round goes_on_with;
  // Why the daemon itself ends the connection, as soon as it does so; OK: the trainer has. May be
  // empty. Called on the server's thread.
  std::function<absl::Status()> own_end = nullptr;
};

// Serves one trainer until it closes its socket. Nothing that the trainer writes into the page or
// sends ends the process: words of other rounds are ignored, and what contradicts itself ends the
// rounds with an error that names it, which the trainer gets from its next wait.
//
// A thread of the page is to the rounds what the trainer's thread is in process: it marks, waits
// and answers questions, and runs the scheduler while it waits. A thread of the socket receives,
// so that an abort and the trainer's end are seen while the other one waits.
// Threads: any. Owns: both threads and the page; borrows the rounds, which outlive it and are its
// alone.
class RoundsServer {
 public:
  // Answers the question by which the trainer asked for the model, with the page and the memory,
  // and serves. Where the trainer comes in another one's place and goes on with a round whose
  // results are not there any more, its first round fails. Errors: those of the page and of the
  // socket.
  static absl::StatusOr<std::unique_ptr<RoundsServer>> Start(ModelRounds& rounds,
                                                             RoundsServerOptions options);
  // Ends what the page's thread waits for, and with it the rounds, unless none is under way.
  ~RoundsServer();
  RoundsServer(const RoundsServer&) = delete;
  RoundsServer& operator=(const RoundsServer&) = delete;

  // Whether the trainer has closed its socket, or broken the protocol.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Blocks: until then.
  void AwaitEnd() const { is_over_.wait(false, std::memory_order_acquire); }
  // Whether the trainer has died and another one may take its place.
  bool is_left() const { return is_left_.load(std::memory_order_acquire); }
  // Once that is so: whether the results of a round are lost because the trainer's last snapshot
  // does not have them in it. A trainer that goes on with that snapshot could take part in no
  // round.
  bool snapshot_is_behind() const;
  // Once that is so: what another one goes on with, after which nothing but destroying this is
  // left. Blocks: until a round that the trainer waited for has ended, and what is under way of
  // another, or `deadline`. Errors: those of ModelRounds::TakeBackMarks.
  absl::StatusOr<RoundsProgress> TakeProgress(absl::Time deadline);
  // Once that is so: ends the rounds, if one is under way.
  void GiveUp(const absl::Status& reason);

 private:
  RoundsServer(ModelRounds& rounds, RoundsServerOptions options, LinkPage page);
  absl::Status Greet(Descriptor page);

  // Begins with what the trainer before has left.
  absl::Status GoOn();
  // The round that the trainer is in: the open one, or the one before once more.
  Round round() const {
    if (!stray_.ok()) return options_.goes_on_with;
    return repeats_ ? progress_.last.round : rounds_.round();
  }

  void ReceiveAll();
  absl::Status Receive();
  void End(const absl::Status& reason);

  void Run();
  bool Look();
  bool TakeReady();
  bool TakeWait();
  bool TakeQuestion();
  // Marks what the page says of `bucket`; `is_ready`: that must be all of it.
  absl::Status TakeMarks(const BucketLayout& bucket, bool is_ready);
  absl::Status TakeMark(SlotId slot, bool is_used);
  // Whether the memory of standalone slots has come, which travels apart from the page.
  bool HasRegion(SlotId slot) const;
  bool HasRegions(const BucketLayout& bucket) const;
  // That the trainer must take its memory back, where that is so.
  absl::Status LookForLoss(const absl::Status& status);
  absl::Status TakeMode();
  void Publish(const absl::Status& outcome, Round ended);
  void PublishResults();
  void PublishRepeated();
  void PublishRuns(const std::vector<bool>& runs);
  // Of the open round: which pipelines run, and nothing is marked.
  void OpenRound();
  void NoteSnapshots();
  bool BeginsToBlock();

  bool IsStopping() const { return is_stopping_.load(std::memory_order_acquire); }

  ModelRounds& rounds_;
  RoundsServerOptions options_;
  RoundsDesk desk_;
  const LinkPage page_;
  Waker waker_;    // on which the page's thread sleeps
  Waker trainer_;  // on which the trainer does

  // The page's thread's.
  std::vector<bool> is_marked_;  // by slot, in the open round
  std::vector<bool> is_used_;    // by slot, in the open round
  std::vector<bool> is_taken_;   // by bucket, in the open round
  bool has_marked_ = false;      // anything, in the open round
  std::vector<bool> runs_;       // by bucket, in the open round
  RoundsProgress progress_;      // where it is kept
  bool repeats_ = false;         // the last round, for a trainer that was not there
  // It has the model's plan and state from the trainer before, until its first round.
  bool has_inherited_ = false;
  Round counted_;                // the open round, when NoteSnapshots has seen it
  uint64_t snapshots_then_ = 0;  // that counted when it began
  absl::Status stray_;           // why it can take part in no round; OK: it can
  // Nor has it told of anything yet: then what it has inherited is its own heir's, too.
  std::atomic<bool> is_untouched_{false};

  // How many snapshots counted when the round before the open one began; -1: it began before this.
  std::atomic<int64_t> snapshots_before_last_{-1};
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_busy_{false};  // the page's thread waits, or has marked something
  std::atomic<bool> is_over_{false};
  std::atomic<bool> is_left_{false};
  PromiseAndFuture<void> page_end_ = MakePromise<void>();  // of the page's thread
  bool says_goodbye_ = false;                              // the socket's thread's
  SharedQueue<TrainersQuestion> questions_;                // from the socket's thread to the page's
  SideThread page_thread_;
  SideThread socket_thread_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_ROUNDS_SERVER_H_
