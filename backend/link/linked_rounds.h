// The rounds of a model that a daemon runs, on the trainer's side.
#ifndef PELTON_BACKEND_LINK_LINKED_ROUNDS_H_
#define PELTON_BACKEND_LINK_LINKED_ROUNDS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backend/link/link_socket.h"
#include "backend/link/page.h"
#include "backend/link/shared_places.h"
#include "core/actor/waker.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"
#include "core/base/sharing.h"
#include "core/base/threads.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "core/round/model_rounds.h"
#include "proto/link_rounds.pb.h"

namespace pelton {

// Tells the daemon through the page: the slots' words, then the bucket's, then a wake-up if it
// sleeps.
// Threads: as ReadySink. Owns: the waker, not its word.
class PageSink final : public ReadySink {
 public:
  explicit PageSink(const LinkPage& page) : page_(page), daemon_(&page.header().daemon_sleeps) {}

  // Where the marks of the plan in force are counted.
  void Follow(const Plan* plan, const BucketStorage* storage, const ReadyTracker* tracker) {
    plan_ = plan;
    storage_ = storage;
    tracker_ = tracker;
  }
  void OnBucketReady(BucketId bucket, Round round) override;
  // The words of a slot that is marked in `round`.
  void WriteMark(SlotId slot, Round round);
  void Kick() {
    daemon_.Kick();
    PauseInSimulation();
  }

 private:
  const LinkPage& page_;
  Waker daemon_;
  const Plan* plan_ = nullptr;
  const BucketStorage* storage_ = nullptr;
  const ReadyTracker* tracker_ = nullptr;
};

// Copies in and out happen here, in the daemon's memory that is mapped; the round itself is the
// daemon's, which reaches standalone tensors where they lie. A mark is what it is in process; a
// bucket's last one also costs a store for each of its slots, and a wake-up if the daemon sleeps.
// The daemon's death ends every wait within a second with Unavailable; the buckets stay readable.
// Threads: as ModelRounds. Owns: plan, tracker, the mappings of page and buckets, the socket,
// copies of standalone tensors that lie in no shared memory.
class LinkedRounds final : public ModelRounds {
 public:
  // What the daemon has answered to the trainer's MakeModel.
  struct Attachment {
    std::unique_ptr<LinkSocket> socket;
    Descriptor page;
    Descriptor memory;  // closed where no bucket has a flat part
    uint64_t plan_hash = 0;
    std::string model_name;
    Rank rank;  // of this process in the world, for reports
    Round first_round{1};
    // Called with the error of the first round that fails because its communication has ended, in
    // the wait for that round; may be empty.
    std::function<void(const absl::Status&)> on_failure;
    // Why the job has failed, as the trainer knows it; may be empty.
    std::function<absl::Status()> failure;
    // See LinkedJob.
    const Standstill* standstill = nullptr;
  };
  // Errors: FailedPrecondition: the daemon has planned otherwise; those of the mappings.
  static absl::StatusOr<std::unique_ptr<LinkedRounds>> Create(Plan plan, Attachment attachment);
  // Lets the daemon go, which ends the model there.
  ~LinkedRounds() override;

  const Plan& plan() const override { return instance_->plan; }
  Round round() const override { return instance_->tracker->round(); }
  void SetMode(RoundMode mode) override;
  std::byte* DataOf(SlotId slot) const override;
  absl::Status MarkReady(SlotId slot) override { return tracker().MarkReady(slot); }
  absl::Status MarkReady(SlotId slot, void* data) override;
  absl::Status MarkUnused(SlotId slot, void* data) override;
  std::vector<SlotId> UnmarkedSlots() const override { return instance_->tracker->UnmarkedSlots(); }
  absl::Status EndRound() override;
  absl::Status WaitRound(absl::Time deadline) override;
  Future<void> RoundDone(absl::Time deadline) override;
  absl::Status CloseRound(absl::Status status) override;
  absl::StatusOr<std::vector<BucketId>> TakeBackMarks(absl::Time) override {
    return absl::UnimplementedError("a pelton-daemon runs these rounds, and keeps their marks");
  }
  void Abort(const absl::Status& reason) override;
  bool Communicates(SlotId slot) const override;
  absl::Status Prime(absl::Time deadline) override;
  absl::StatusOr<std::vector<SlotState>> SaveStates(absl::Time deadline) override;
  absl::Status LoadStates(absl::Span<const SlotState> states, absl::Time deadline) override;
  const Region* region() const override { return instance_->storage->region(); }
  SlotResult ResultOf(SlotId slot) const override;
  std::vector<SlotId> ReadyOrder() const override { return instance_->tracker->ReadyOrder(); }
  absl::Status BeginAgreement(std::vector<int32_t> words) override;
  absl::StatusOr<std::vector<int32_t>> Agreed(absl::Time deadline) override;
  Future<RoundSight> RequestLook(absl::Time) override {
    return Future<RoundSight>::Completed(
        absl::UnimplementedError("a pelton-daemon runs these rounds, and is the one to be asked"));
  }
  // Copies of the daemon's.
  BucketTimes& times() override { return times_; }
  absl::Status Replan(absl::Span<const SlotId> order, absl::Time deadline) override;
  absl::Status Resize(absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                      absl::Time deadline) override;

  // What the rank has sent for the model, as of the last round.
  uint64_t sent_bytes() const { return page_.header().sent_bytes.load(std::memory_order_relaxed); }

 private:
  bool is_agreeing() const override { return is_agreeing_; }
  // A plan and what is made for it here; it stays where it was made.
  struct Instance {
    explicit Instance(Plan its_plan) : plan(std::move(its_plan)) {}
    const Plan plan;
    std::unique_ptr<BucketStorage> storage;
    std::unique_ptr<ReadyTracker> tracker;
  };
  // An answer, with what came along.
  struct Answer {
    link::RoundsAnswer message;
    std::vector<Descriptor> descriptors;
  };

  LinkedRounds(LinkPage page, std::unique_ptr<PrivateMapping> page_memory, size_t slot_count,
               Attachment attachment);
  ReadyTracker& tracker() { return *instance_->tracker; }
  bool IsStandalone(SlotId slot) const { return plan().Has(slot) && plan().slot(slot).standalone; }
  absl::Status TellOfRegion(RegionId number, int descriptor);
  // Whether a bucket with standalone tensors is the daemon's and its peers' just now.
  bool IsLent() const;
  // Ends the open round, so that these are the caller's again.
  void EndLoan();
  // Until the daemon has ended `round`, which was aborted, for a while: what the peers may still
  // write belongs to them until then (OWN-1).
  void AwaitAbortedEnd(uint64_t round);
  void TakeBackWhatIsLent();
  absl::Status MakeInstance(Plan plan, Round first, Descriptor memory);
  absl::StatusOr<std::unique_ptr<BucketStorage>> MapStorage(const Plan& plan, Descriptor memory);
  absl::Status CheckHash(const Plan& plan, uint64_t hash) const;
  absl::Status MoveTo(Plan plan, absl::Span<const SlotId> order, uint64_t bucket_size_bytes,
                      absl::Time deadline);
  // Sends and receives; an error of the daemon's is this call's.
  absl::StatusOr<Answer> Ask(link::RoundsQuestion question, absl::Time deadline,
                             absl::Span<const int> descriptors = {});
  absl::StatusOr<Answer> Exchange(const link::RoundsQuestion& question, absl::Time deadline,
                                  absl::Span<const int> descriptors);
  void PostWait(absl::Time deadline);
  // Until the daemon has ended `round`.
  absl::Status AwaitEnd(uint64_t round, absl::Time deadline);
  bool HasEnded(uint64_t round) const;
  // How long deadlines have stood still so far.
  absl::Duration Stood() const;
  // Ends the rounds once the job has failed, because the daemon is not told of failures of other
  // ranks' trainers.
  void CheckJob();
  // Unavailable once the daemon's end of the socket is closed; stays so.
  absl::Status CheckDaemon();
  std::string Where() const;
  // That the daemon has not answered for so long.
  std::string Silence(absl::Duration waited) const;
  void TakeTimes();

  const LinkPage page_;
  const std::unique_ptr<PrivateMapping> page_memory_;  // the same, which children must not write
  const std::unique_ptr<LinkSocket> socket_;
  const std::string model_name_;
  const Rank rank_;
  std::function<void(const absl::Status&)> on_failure_;  // empty once it has been called
  const std::function<absl::Status()> failure_;
  const Standstill* const standstill_;
  bool has_aborted_ = false;  // because of failure_
  PageSink sink_;
  Waker waker_;                             // on which this side sleeps
  std::unique_ptr<PrivateMapping> memory_;  // of the buckets; before what lies over it
  std::unique_ptr<Instance> instance_;
  SharedPlaces places_;  // of standalone slots
  BucketTimes times_;
  bool round_ended_ = false;
  bool is_agreeing_ = false;
  std::atomic<bool> is_closing_{false};
  EndReason gone_;                       // why the daemon cannot be reached any more
  CallThread waiting_{"pelton-rounds"};  // for RoundDone; last: it uses the others
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINKED_ROUNDS_H_
