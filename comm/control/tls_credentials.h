// gRPC's credentials made of certificate files.
#ifndef PELTON_COMM_CONTROL_TLS_CREDENTIALS_H_
#define PELTON_COMM_CONTROL_TLS_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "comm/control/tls_options.h"

namespace pelton {

// Credentials in clear if `options` names no file. What the other side would refuse is found here,
// where the reason can be told: a certificate of another authority, one that has expired, a key
// that is not its own.
// Blocks: to read the files. Errors: each names the option and the file. InvalidArgument: a path is
// missing, or a file is not what it should be; NotFound: it cannot be read; Unauthenticated: the
// certificate is not valid under the authority.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options);

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_TLS_CREDENTIALS_H_
