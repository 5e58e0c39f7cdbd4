#include "backend/link/rounds_desk.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backend/link/rounds_messages.h"
#include "core/actor/wait_hook.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "core/plan/plan.h"

namespace pelton {
namespace {

RegionId IdOf(const Region* region) { return region == nullptr ? kPrivateRegion : region->id(); }

}  // namespace

absl::Status RoundsDesk::AddMemory(link::RoundsAnswer& answer,
                                   std::vector<Descriptor>& descriptors) const {
  answer.set_plan_hash(rounds_.plan().Hash());
  const Region* const region = rounds_.region();
  if (region == nullptr) return absl::OkStatus();
  Descriptor copy(dup(region->descriptor()));
  if (!copy.is_open()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("model '", model_name_, "', rank ", rank_.value(),
                     ": the daemon has no descriptor left for the buckets' memory; raise its limit "
                     "(ulimit -n)"));
  }
  answer.set_has_memory(true);
  descriptors.push_back(std::move(copy));
  return absl::OkStatus();
}

void RoundsDesk::AddPlan(link::RoundsAnswer& answer) const {
  const Plan& plan = rounds_.plan();
  if (plan.version() == PlanVersion(1)) return;
  for (const BucketLayout& bucket : plan.buckets()) {
    for (SlotId slot : bucket.slots) answer.add_order(slot.value());
  }
  answer.set_bucket_size_bytes(plan.options().bucket_size_bytes);
}

absl::Status RoundsDesk::CheckBetweenRounds(const link::RoundsQuestion& question,
                                            const Situation& situation) const {
  // An agreement moves words of its own and leaves the state as it is.
  const bool only_looks = question.what_case() == link::RoundsQuestion::kSaveStates;
  const bool is_agreeing = is_agreeing_ && !only_looks;
  if (!situation.has_marked && !is_agreeing) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "model '", model_name_,
      "': ", is_agreeing ? "an agreement" : absl::StrCat("round ", rounds_.round().value()),
      " is under way"));
}

absl::Status RoundsDesk::Answer(const TrainersQuestion& question, const Situation& situation,
                                link::RoundsAnswer& answer, std::vector<Descriptor>& descriptors) {
  const link::RoundsQuestion& message = question.message;
  const absl::Time deadline = WaitClock().Now() + DurationOf(message.timeout_ns());
  if (message.what_case() == link::RoundsQuestion::kAgreed) return Agreed(deadline, answer);
  if (situation.has_inherited) return AnswerHeir(question, deadline, answer, descriptors);
  RETURN_IF_ERROR(CheckBetweenRounds(message, situation));
  switch (message.what_case()) {
    case link::RoundsQuestion::kPrime:
      return rounds_.Prime(deadline);
    case link::RoundsQuestion::kSaveStates:
    case link::RoundsQuestion::kLoadStates:
      return AnswerOfStates(question, deadline, answer, descriptors);
    case link::RoundsQuestion::kBeginAgreement:
      return BeginAgreement(message.begin_agreement());
    case link::RoundsQuestion::kReplan:
      return Replan(message.replan(), deadline, answer, descriptors);
    default:
      return absl::InvalidArgumentError(absl::StrCat("model '", model_name_, "': question ",
                                                     message.what_case(),
                                                     " cannot be asked of a model that serves"));
  }
}

// What a trainer brings from its snapshot the rounds have already, and they may have gone on.
absl::Status RoundsDesk::AnswerHeir(const TrainersQuestion& question, absl::Time deadline,
                                    link::RoundsAnswer& answer,
                                    std::vector<Descriptor>& descriptors) {
  switch (question.message.what_case()) {
    case link::RoundsQuestion::kPrime:
    case link::RoundsQuestion::kLoadStates:
      return absl::OkStatus();
    case link::RoundsQuestion::kSaveStates:
      return AnswerOfStates(question, deadline, answer, descriptors);
    case link::RoundsQuestion::kReplan:
      return CheckSameOrder(question.message.replan(), answer);
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("model '", model_name_, "', rank ", rank_.value(), ": round ",
                       rounds_.round().value(), " comes first, because another trainer was in it"));
  }
}

absl::Status RoundsDesk::CheckSameOrder(const link::LinkReplan& request,
                                        link::RoundsAnswer& answer) const {
  link::RoundsAnswer plan;
  AddPlan(plan);
  answer.set_plan_hash(rounds_.plan().Hash());
  const bool is_same =
      request.bucket_size_bytes() == 0 || request.bucket_size_bytes() == plan.bucket_size_bytes();
  const auto& order = request.order();
  if (is_same && std::equal(order.begin(), order.end(), plan.order().begin(), plan.order().end())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "model '", model_name_, "', rank ", rank_.value(),
      ": a trainer that comes in another one's place wants the buckets in another order"));
}

absl::Status RoundsDesk::AnswerOfStates(const TrainersQuestion& question, absl::Time deadline,
                                        link::RoundsAnswer& answer,
                                        std::vector<Descriptor>& descriptors) {
  if (question.message.what_case() == link::RoundsQuestion::kSaveStates) {
    ASSIGN_OR_RETURN(const std::vector<SlotState> states, rounds_.SaveStates(deadline));
    ASSIGN_OR_RETURN(StatesInMemory in_memory, ToMemory(states));
    *answer.mutable_states() = std::move(in_memory.states);
    descriptors.push_back(std::move(in_memory.memory));
    return absl::OkStatus();
  }
  if (question.descriptors.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state of model '", model_name_,
        "': no memory comes with it; start the trainer and the daemon from one installation"));
  }
  ASSIGN_OR_RETURN(const std::vector<SlotState> states,
                   FromMemory(question.message.load_states(), question.descriptors.front().get(),
                              rounds_.plan().slots().size()));
  return rounds_.LoadStates(states, deadline);
}

absl::Status RoundsDesk::BeginAgreement(const link::LinkWords& words) {
  if (words.words().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model '", model_name_,
                     "': the ranks are to agree on an empty list of words; give one word or more"));
  }
  RETURN_IF_ERROR(rounds_.BeginAgreement({words.words().begin(), words.words().end()}));
  is_agreeing_ = true;
  return absl::OkStatus();
}

absl::Status RoundsDesk::Agreed(absl::Time deadline, link::RoundsAnswer& answer) {
  is_agreeing_ = false;
  ASSIGN_OR_RETURN(const std::vector<int32_t> words, rounds_.Agreed(deadline));
  answer.mutable_words()->mutable_words()->Assign(words.begin(), words.end());
  return absl::OkStatus();
}

absl::Status RoundsDesk::Replan(const link::LinkReplan& request, absl::Time deadline,
                                link::RoundsAnswer& answer, std::vector<Descriptor>& descriptors) {
  std::vector<SlotId> order;
  for (int32_t slot : request.order()) order.emplace_back(slot);
  const RegionId before = IdOf(rounds_.region());
  const uint64_t size_bytes = request.bucket_size_bytes();
  RETURN_IF_ERROR(size_bytes == 0 ? rounds_.Replan(order, deadline)
                                  : rounds_.Resize(order, size_bytes, deadline));
  RETURN_IF_ERROR(AddMemory(answer, descriptors));
  if (IdOf(rounds_.region()) == before) {  // the trainer has it mapped
    answer.set_has_memory(false);
    descriptors.clear();
  }
  return absl::OkStatus();
}

}  // namespace pelton
