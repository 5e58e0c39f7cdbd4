// What a trainer asks of a model's rounds between them.
#ifndef PELTON_BACKEND_LINK_ROUNDS_DESK_H_
#define PELTON_BACKEND_LINK_ROUNDS_DESK_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/transport/descriptor.h"
#include "core/base/ids.h"
#include "core/round/model_rounds.h"
#include "proto/link_rounds.pb.h"

namespace pelton {

// A question, with what came along. Threads: a value. Owns: the descriptors.
struct TrainersQuestion {
  link::RoundsQuestion message;
  std::vector<Descriptor> descriptors;
};

// Threads: one at a time, which does nothing else with the rounds meanwhile. Owns: nothing; borrows
// the rounds.
class RoundsDesk {
 public:
  RoundsDesk(ModelRounds& rounds, std::string model_name, Rank rank)
      : rounds_(rounds), model_name_(std::move(model_name)), rank_(rank) {}

  struct Situation {
    bool has_marked = false;  // anything, in the open round
    // The rounds' plan and state are from a trainer before the one that asks, in whose place it is.
    bool has_inherited = false;
  };
  // Blocks: until the question's deadline. Errors: those of what is asked for; FailedPrecondition:
  // a round is under way; InvalidArgument: it is no question of this kind.
  absl::Status Answer(const TrainersQuestion& question, const Situation& situation,
                      link::RoundsAnswer& answer, std::vector<Descriptor>& descriptors);
  // Whether an agreement has begun and not been asked for.
  bool is_agreeing() const { return is_agreeing_; }
  // The plan in force and a descriptor of the memory of its flat parts, where it has any.
  absl::Status AddMemory(link::RoundsAnswer& answer, std::vector<Descriptor>& descriptors) const;
  // How the plan in force comes from the model's options, where it is not what they say.
  void AddPlan(link::RoundsAnswer& answer) const;

 private:
  absl::Status CheckBetweenRounds(const link::RoundsQuestion& question,
                                  const Situation& situation) const;
  absl::Status AnswerHeir(const TrainersQuestion& question, absl::Time deadline,
                          link::RoundsAnswer& answer, std::vector<Descriptor>& descriptors);
  absl::Status CheckSameOrder(const link::LinkReplan& request, link::RoundsAnswer& answer) const;
  absl::Status AnswerOfStates(const TrainersQuestion& question, absl::Time deadline,
                              link::RoundsAnswer& answer, std::vector<Descriptor>& descriptors);
  absl::Status BeginAgreement(const link::LinkWords& words);
  absl::Status Agreed(absl::Time deadline, link::RoundsAnswer& answer);
  absl::Status Replan(const link::LinkReplan& request, absl::Time deadline,
                      link::RoundsAnswer& answer, std::vector<Descriptor>& descriptors);

  ModelRounds& rounds_;
  const std::string model_name_;
  const Rank rank_;
  bool is_agreeing_ = false;  // between the two halves of an agreement
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_ROUNDS_DESK_H_
