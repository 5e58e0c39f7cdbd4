// For tests: any transport, reduced to its sends and receives, with recipes for all else.
#ifndef PELTON_COMM_COLLECTIVES_TEST_PROGRAM_TRANSPORT_H_
#define PELTON_COMM_COLLECTIVES_TEST_PROGRAM_TRANSPORT_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "comm/collectives/program_communicator.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "core/base/status.h"

namespace pelton {

// Refuses collectives. Threads: as Communicator. Owns: the communicator it wraps.
class MessagesOnly final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    if (!IsPointToPoint(operation.kind)) return absl::InternalError("a collective on the wire");
    return ForwardingCommunicator::Launch(operation, stream);
  }
};

// Threads: as Transport. Owns: the transport it wraps.
class TestProgramTransport final : public Transport {
 public:
  TestProgramTransport(std::unique_ptr<Transport> wire, SelectionTable table)
      : wire_(std::move(wire)), table_(std::move(table)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, wire_->Open(id, group, deadline));
    return MakeProgramCommunicator(std::make_unique<MessagesOnly>(std::move(opened)), table_);
  }
  void Abort(const absl::Status& reason) override { wire_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> wire_;
  const SelectionTable table_;
};

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_TEST_PROGRAM_TRANSPORT_H_
