// What a daemon answers its trainer's calls to the control plane with.
#ifndef PELTON_BACKEND_LINK_CALL_DESK_H_
#define PELTON_BACKEND_LINK_CALL_DESK_H_

#include "backend/backend.h"
#include "backend/link/trainer_seat.h"
#include "proto/link.pb.h"

namespace pelton {

// Runs `call` of `trainer` at the job's coordinator. Names that the trainer gives are put behind
// its epoch's prefix, which no answer shows. LinkCall::missing is not for here. Blocks: until the
// call's own deadline. Errors: none; they stand in the reply.
proto::LinkReply AnswerCall(Backend& backend, TrainerSeat& seat,
                            const TrainerSeat::Trainer& trainer, const proto::LinkCall& call);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_CALL_DESK_H_
