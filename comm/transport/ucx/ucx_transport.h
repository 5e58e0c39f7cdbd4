// The transport for ranks on different hosts.
#ifndef PELTON_COMM_TRANSPORT_UCX_UCX_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_UCX_UCX_TRANSPORT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/transport/transport.h"

namespace pelton {

// Connects the ranks of the job over UCX: TCP on `options.interface`, or what PELTON_UCX_TLS names.
// Its communicators send and receive; comm/collectives makes collectives of that. An `id` whose
// Open failed must not be opened again at the same generation. Blocks: until all ranks have called,
// or the deadline. Errors: DeadlineExceeded; NotFound: no such interface; Unauthenticated: names a
// rank that does not hold the job's token.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const TransportOptions& options);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_UCX_UCX_TRANSPORT_H_
