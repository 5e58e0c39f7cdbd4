// A certificate authority for tests.
#ifndef PELTON_COMM_CONTROL_TEST_CERTIFICATES_H_
#define PELTON_COMM_CONTROL_TEST_CERTIFICATES_H_

#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/control/tls_options.h"

namespace pelton {

// Issues certificates as files in the test's temporary folder. Threads: one. Owns:
// its key and certificate.
class TestAuthority {
 public:
  // `name` is its own and that of its files.
  explicit TestAuthority(const std::string& name);

  // The options of who holds a certificate of this authority; it was or is valid for an hour around
  // or up to `until`. `host`: where they are, in OpenSSL's words.
  TlsOptions Issue(const std::string& name, absl::Time until = absl::Now() + absl::Hours(1),
                   const std::string& host = "IP:127.0.0.1") const;
  const std::string& certificate_path() const { return path_; }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Key NewKey();
  // Of an authority where there is no host.
  Certificate NewCertificate(const std::string& subject, EVP_PKEY* key, absl::Time until,
                             const std::string& host) const;
  static std::string Write(const std::string& name, X509* certificate);

  const std::string name_;
  const Key key_;
  const Certificate certificate_;
  const std::string path_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_TEST_CERTIFICATES_H_
