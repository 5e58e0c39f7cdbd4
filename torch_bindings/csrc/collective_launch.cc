#include "torch_bindings/csrc/collective_launch.h"

#include "core/memory/device_queue.h"
#include "core/memory/region.h"

namespace pelton::torch_bindings {

lane::Job::Launch LaunchOf(const Collective& collective, const OnStream& on_stream) {
  return [collective, gpus = OnStream(on_stream)](Communicator& communicator) mutable {
    Operation operation;
    operation.kind = collective.kind;
    operation.dtype = collective.target.dtype;
    operation.reduce_op = collective.reduce_op;
    operation.peer = collective.root;
    operation.count = collective.count;
    operation.bucket = collective.bucket;
    operation.tag = collective.shape_mark;
    const auto place = [](const Tensor& tensor) {
      return Locate(tensor.data, tensor.count * SizeOf(tensor.dtype));
    };
    operation.set_source(place(collective.source));
    operation.set_target(place(collective.target));
    if (gpus.has_value()) return communicator.Launch(operation, *gpus);
    HostStream stream;
    return communicator.Launch(operation, stream);
  };
}

}  // namespace pelton::torch_bindings
