#include "comm/control/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace pelton {
namespace {

std::string PathOf(const std::string& name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return absl::StrCat(folder != nullptr ? folder : "/tmp", "/", name, ".pem");
}

template <typename Write>
std::string WriteFile(const std::string& name, Write write) {
  std::string path = PathOf(name);
  std::FILE* const file = std::fopen(path.c_str(), "w");
  PELTON_CHECK(file != nullptr) << path;
  PELTON_CHECK(write(file) == 1) << path;
  std::fclose(file);
  return path;
}

void AddExtension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  PELTON_CHECK(extension != nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name)
    : name_(name),
      key_(NewKey()),
      certificate_(NewCertificate(name, key_.get(), absl::Now() + absl::Hours(1), "")),
      path_(Write(name, certificate_.get())) {}

TestAuthority::Key TestAuthority::NewKey() { return Key(EVP_EC_gen("P-256")); }

TestAuthority::Certificate TestAuthority::NewCertificate(const std::string& subject, EVP_PKEY* key,
                                                         absl::Time until,
                                                         const std::string& host) const {
  const bool is_authority = host.empty();
  static std::atomic<int> last_serial = 0;
  Certificate made(X509_new());
  X509* const certificate = made.get();
  X509_set_version(certificate, 2);  // that is: version 3
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++last_serial);
  ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(until - absl::Hours(2)));
  ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(until));
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1, 0);
  X509* const issuer = is_authority ? certificate : certificate_.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
  AddExtension(certificate, issuer, NID_basic_constraints,
               is_authority ? "critical,CA:TRUE" : "CA:FALSE");
  if (!is_authority) AddExtension(certificate, issuer, NID_subject_alt_name, host.c_str());
  PELTON_CHECK(X509_sign(certificate, key_.get(), EVP_sha256()) > 0) << subject;
  return made;
}

std::string TestAuthority::Write(const std::string& name, X509* certificate) {
  return WriteFile(name, [&](std::FILE* file) { return PEM_write_X509(file, certificate); });
}

TlsOptions TestAuthority::Issue(const std::string& name, absl::Time until,
                                const std::string& host) const {
  const Key key = NewKey();
  const Certificate certificate = NewCertificate(name, key.get(), until, host);
  const std::string file = absl::StrCat(name_, "-", name);
  TlsOptions options;
  options.ca_path = path_;
  options.certificate_path = Write(file, certificate.get());
  options.key_path = WriteFile(absl::StrCat(file, "-key"), [&](std::FILE* out) {
    return PEM_write_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return options;
}

}  // namespace pelton
