// The certificates that a process shows and accepts on the control plane.
#ifndef PELTON_COMM_CONTROL_TLS_OPTIONS_H_
#define PELTON_COMM_CONTROL_TLS_OPTIONS_H_

#include <string>

namespace pelton {

// Paths of PEM files: all three, or none for a connection in clear. Both sides prove who they are
// (mTLS), and the job's token is needed all the same.
struct TlsOptions {
  std::string ca_path = {};           // the authority that the other side's certificate must be of
  std::string certificate_path = {};  // this process's own, with what chains it to the authority
  std::string key_path = {};          // of the certificate, without a passphrase
  // What the coordinator's certificate is made out to, where that is not its address.
  std::string server_name = {};

  bool enabled() const {
    return !ca_path.empty() || !certificate_path.empty() || !key_path.empty();
  }
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_TLS_OPTIONS_H_
