#include "backend/link/linked_model.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/linked_rounds.h"
#include "backend/link/rounds_messages.h"
#include "core/actor/wait_hook.h"
#include "core/base/status.h"
#include "core/memory/device_queue.h"

namespace pelton {
namespace {

// The daemon gives up at the deadline, and what it then says tells more than a missing answer.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);

// Threads: as Model. Owns: as Model.
class LinkedModel final : public Model {
 public:
  LinkedModel(std::unique_ptr<Algorithm> algorithm, Rank rank, std::unique_ptr<LinkedRounds> rounds)
      : algorithm_(std::move(algorithm)), rank_(rank), rounds_(std::move(rounds)) {}

  ModelRounds& rounds() override { return *rounds_; }
  Rank rank() const override { return rank_; }
  const Algorithm& algorithm() const override { return *algorithm_; }
  uint64_t sent_bytes() const override { return rounds_->sent_bytes(); }
  // The rounds tell the daemon of what they meet.
  absl::Status Register(const Region&) override { return absl::OkStatus(); }
  void Deregister(RegionId) override {}

 private:
  const std::unique_ptr<Algorithm> algorithm_;
  const Rank rank_;
  const std::unique_ptr<LinkedRounds> rounds_;
};

absl::Status CheckOnHost(const std::string& model, const std::vector<TensorSpec>& tensors) {
  for (const TensorSpec& tensor : tensors) {
    if (tensor.device.kind == DeviceKind::kHost) continue;
    return absl::UnimplementedError(absl::StrCat(
        "model '", model, "': tensor '", tensor.name, "' is on ", NameOf(tensor.device.kind),
        "; a daemon has no buckets there; make the model in the trainer, with Model::Create"));
  }
  return absl::OkStatus();
}

// The plan that a trainer before this one has moved to.
absl::StatusOr<Plan> InForce(const Plan& first, const link::RoundsAnswer& answer) {
  std::vector<SlotId> order;
  for (int32_t slot : answer.order()) order.emplace_back(slot);
  if (answer.bucket_size_bytes() == first.options().bucket_size_bytes) {
    return first.Reordered(order);
  }
  return first.Resized(order, answer.bucket_size_bytes());
}

absl::StatusOr<LinkSocket::Message> AskForModel(LinkSocket& socket, const LinkedJob& job,
                                                const ModelOptions& options,
                                                const std::vector<TensorSpec>& tensors,
                                                absl::Time deadline) {
  link::RoundsQuestion question;
  *question.mutable_make() = ToMessage(options, tensors);
  question.set_timeout_ns(NanosOf(deadline - WaitClock().Now()));
  RETURN_IF_ERROR(socket.Send(question, deadline));
  // The daemon is not told of failures of other ranks' trainers, but this trainer is, so it ends
  // the wait itself.
  return socket.ReceiveWithLooks(deadline + kAnswerGrace, [&job] {
    return job.failure != nullptr ? job.failure() : absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> AttachModel(std::unique_ptr<LinkSocket> socket,
                                                   LinkedJob job, const ModelOptions& options,
                                                   std::unique_ptr<Algorithm> algorithm,
                                                   std::vector<TensorSpec> tensors,
                                                   absl::Time deadline) {
  RETURN_IF_ERROR(CheckOnHost(options.name, tensors));
  const std::string where =
      absl::StrCat("model '", options.name, "', rank ", job.rank.value(), ": its daemon");
  absl::StatusOr<LinkSocket::Message> received =
      AskForModel(*socket, job, options, tensors, deadline);
  if (!received.ok()) return Annotate(received.status(), where);
  link::RoundsAnswer answer;
  if (!answer.ParseFromString(received->payload)) {
    return absl::InternalError(absl::StrCat(where,
                                            " sends an answer that this trainer cannot read; start "
                                            "the trainer and the daemon from one installation"));
  }
  RETURN_IF_ERROR(FromMessage(answer.status()));
  if (received->descriptors.size() != (answer.has_memory() ? 2U : 1U)) {
    return absl::InternalError(

        absl::StrCat(where, " sends ", received->descriptors.size(), " descriptors, not ",
                     answer.has_memory() ? 2 : 1,
                     "; start the trainer and the daemon from one installation"));
  }
  ASSIGN_OR_RETURN(Plan plan, PlanOf(options, *algorithm, std::move(tensors)));
  if (answer.order_size() > 0) {
    ASSIGN_OR_RETURN(plan, InForce(plan, answer));
  }
  LinkedRounds::Attachment attachment;
  attachment.socket = std::move(socket);
  attachment.page = std::move(received->descriptors.front());
  if (answer.has_memory()) attachment.memory = std::move(received->descriptors.back());
  attachment.plan_hash = answer.plan_hash();
  attachment.model_name = options.name;
  attachment.rank = job.rank;
  attachment.first_round = options.first_round;
  attachment.on_failure = std::move(job.on_failure);
  attachment.failure = std::move(job.failure);
  attachment.standstill = job.standstill;
  ASSIGN_OR_RETURN(std::unique_ptr<LinkedRounds> rounds,
                   LinkedRounds::Create(std::move(plan), std::move(attachment)));
  return std::make_unique<LinkedModel>(std::move(algorithm), Rank(answer.rank()),
                                       std::move(rounds));
}

}  // namespace pelton
