#include "comm/control/tls_credentials.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr std::streamsize kMaxFileBytes = 1 << 20;

template <typename T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* object) const { kFree(object); }
};
template <typename T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Freer<T, kFree>>;
void FreeBio(BIO* bio) { BIO_free(bio); }
void FreeChain(STACK_OF(X509) * chain) { sk_X509_pop_free(chain, X509_free); }
using Certificate = Owned<X509, X509_free>;
using Chain = Owned<STACK_OF(X509), FreeChain>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Text = Owned<BIO, FreeBio>;

// A file and where its path came from.
struct Pem {
  absl::string_view option;
  const std::string& path;
  std::string text = {};

  std::string Name() const { return absl::StrCat(option, ": '", path, "'"); }
};

absl::Status Read(Pem& pem) {
  if (pem.path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(pem.option, ": is missing; authority, certificate and key go together"));
  }
  std::ifstream file(pem.path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(pem.Name(), " cannot be read"));
  // One byte more than is permitted, to see whether there is one.
  pem.text.resize(kMaxFileBytes + 1);
  file.read(pem.text.data(), kMaxFileBytes + 1);
  pem.text.resize(static_cast<size_t>(file.gcount()));
  if (file.gcount() <= kMaxFileBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(pem.Name(), " is larger than ", kMaxFileBytes,
                                                 " bytes; keep only the certificates needed"));
}

Text Reader(const Pem& pem) {
  return Text(BIO_new_mem_buf(pem.text.data(), static_cast<int>(pem.text.size())));
}

// The certificates of a file, in its order.
absl::StatusOr<Chain> CertificatesIn(const Pem& pem) {
  Chain chain(sk_X509_new_null());
  const Text reader = Reader(pem);
  while (X509* certificate = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) {
    sk_X509_push(chain.get(), certificate);
  }
  if (sk_X509_num(chain.get()) > 0) return chain;
  return absl::InvalidArgumentError(absl::StrCat(pem.Name(), " holds no certificate in PEM"));
}

absl::StatusOr<Key> KeyIn(const Pem& pem) {
  // Nobody is there to type a passphrase.
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_passphrase, nullptr));
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      absl::StrCat(pem.Name(), " holds no private key in PEM without a passphrase"));
}

// Whether the first of `own` is valid now, for an authority in `trusted`.
absl::Status CheckChain(const Pem& certificate, STACK_OF(X509) * own, const Pem& ca,
                        STACK_OF(X509) * trusted) {
  const Owned<X509_STORE_CTX, X509_STORE_CTX_free> context(X509_STORE_CTX_new());
  const Owned<X509_STORE, X509_STORE_free> store(X509_STORE_new());
  for (int i = 0; i < sk_X509_num(trusted); ++i) {
    X509_STORE_add_cert(store.get(), sk_X509_value(trusted, i));
  }
  X509_STORE_CTX_init(context.get(), store.get(), sk_X509_value(own, 0), own);
  if (X509_verify_cert(context.get()) == 1) return absl::OkStatus();
  return absl::UnauthenticatedError(
      absl::StrCat(certificate.Name(), " is not valid for the authority in '", ca.path,
                   "': ", X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()))));
}

// The three files, read and found to belong together.
struct Identity {
  Pem ca;
  Pem certificate;
  Pem key;
};

absl::StatusOr<Identity> Load(const TlsOptions& options) {
  Identity identity{{"tls.ca_path", options.ca_path},
                    {"tls.certificate_path", options.certificate_path},
                    {"tls.key_path", options.key_path}};
  for (Pem* pem : {&identity.ca, &identity.certificate, &identity.key}) RETURN_IF_ERROR(Read(*pem));
  ASSIGN_OR_RETURN(const Chain trusted, CertificatesIn(identity.ca));
  ASSIGN_OR_RETURN(const Chain own, CertificatesIn(identity.certificate));
  ASSIGN_OR_RETURN(const Key key, KeyIn(identity.key));
  if (X509_check_private_key(sk_X509_value(own.get(), 0), key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(identity.key.Name(),
                                                   " is not the key of the certificate in '",
                                                   options.certificate_path, "'"));
  }
  RETURN_IF_ERROR(CheckChain(identity.certificate, own.get(), identity.ca, trusted.get()));
  return identity;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(Identity identity, Load(options));
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = std::move(identity.ca.text);
  ssl.pem_key_cert_pairs.push_back(
      {std::move(identity.key.text), std::move(identity.certificate.text)});
  return grpc::SslServerCredentials(ssl);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(Identity identity, Load(options));
  return grpc::SslCredentials({std::move(identity.ca.text), std::move(identity.key.text),
                               std::move(identity.certificate.text)});
}

}  // namespace pelton
