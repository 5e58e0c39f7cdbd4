// Stages that most pipelines are made of.
#ifndef PELTON_CORE_PIPELINE_STANDARD_STAGES_H_
#define PELTON_CORE_PIPELINE_STANDARD_STAGES_H_

#include <memory>

#include "core/memory/dtype.h"
#include "core/pipeline/stage.h"

namespace pelton {

// Exchange: allreduces every segment in place with `op`, all at once.
// Steps: one allreduce per segment. Bytes: those of the communicator's allreduce.
std::unique_ptr<Stage> MakeAllReduceStage(ReduceOp op);

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_STANDARD_STAGES_H_
