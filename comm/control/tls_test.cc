// Certificates on the control plane: who fits comes in, everybody else gets a reason.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "comm/control/conformance_test.h"
#include "comm/control/coordinator_server.h"
#include "comm/control/grpc_control.h"
#include "comm/control/test_certificates.h"
#include "core/base/check.h"
#include "proto/control.grpc.pb.h"

namespace pelton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef";

// Threads: the test's. Owns: a coordinator that wants certificates of `authority_`.
class TlsTest : public testing::Test {
 protected:
  static std::unique_ptr<CoordinatorServer> Serve(const TlsOptions& tls) {
    CoordinatorOptions options;
    options.token = kToken;
    options.tls = tls;
    auto server = CoordinatorServer::Start(options);
    PELTON_CHECK_OK(server.status());
    return *std::move(server);
  }

  absl::StatusOr<std::unique_ptr<Control>> Make(const TlsOptions& tls,
                                                const char* token = kToken) const {
    return MakeGrpcControl({.address = server_->address(), .token = token, .tls = tls});
  }
  // What a rank of its own job gets.
  absl::Status Join(const TlsOptions& tls, const char* token = kToken) const {
    const auto control = Make(tls, token);
    if (!control.ok()) return control.status();
    const absl::Status joined =
        (*control)->Join(MakeJoin(0, 1), absl::Now() + absl::Seconds(3)).status();
    if (joined.ok()) {
      EXPECT_TRUE((*control)->Leave(Late()).ok());
    }
    return joined;
  }

  const TestAuthority authority_{"authority"};
  const TestAuthority other_{"other"};
  const std::unique_ptr<CoordinatorServer> server_ = Serve(authority_.Issue("coordinator"));
};

TEST_F(TlsTest, RanksWithCertificatesMeet) {
  OnEveryRank(2, [&](int rank) {
    const auto control = Make(authority_.Issue(absl::StrCat("rank", rank)));
    ASSERT_TRUE(control.ok()) << control.status();
    const auto joined = (*control)->Join(MakeJoin(rank, 2), Late());
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE((*control)->AllGather("here", "x", Late()).ok());
    EXPECT_TRUE((*control)->Leave(Late()).ok());
  });
}

TEST_F(TlsTest, TheTokenIsNeededAllTheSame) {
  const absl::Status status = Join(authority_.Issue("rank"), "fedcba9876543210");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("refuses this job's token"));
}

TEST_F(TlsTest, ACoordinatorOfAnotherAuthorityIsRefused) {
  const absl::Time start = absl::Now();
  const absl::Status status = Join(other_.Issue("rank"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 0"), HasSubstr(server_->address()), HasSubstr("certificate")));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

TEST_F(TlsTest, ARankOfAnotherAuthorityIsRefused) {
  // It knows the coordinator's authority, but its own certificate is of the other one.
  TlsOptions mixed = other_.Issue("rank");
  std::ofstream both(mixed.ca_path, std::ios::app);
  both << std::ifstream(authority_.certificate_path()).rdbuf();
  both.close();
  const absl::Status status = Join(mixed);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 0"), HasSubstr(server_->address())));
  EXPECT_TRUE(Join(authority_.Issue("next")).ok());
}

TEST_F(TlsTest, NoCertificateIsRefused) {
  const absl::Status in_clear = Join({});
  EXPECT_EQ(in_clear.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(in_clear.message()), HasSubstr("rank 0"));

  // And with TLS, but without a certificate of its own: our client refuses to, gRPC's does not.
  std::ifstream file(authority_.certificate_path());
  const std::string root{std::istreambuf_iterator<char>(file), {}};
  const auto stub = proto::Coordinator::NewStub(
      grpc::CreateChannel(server_->address(), grpc::SslCredentials({root, "", ""})));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(3)));
  context.AddMetadata("pelton-token", kToken);
  proto::JoinResponse response;
  EXPECT_FALSE(stub->Join(&context, proto::JoinRequest(), &response).ok());
  EXPECT_TRUE(Join(authority_.Issue("next")).ok());
}

TEST_F(TlsTest, AnExpiredCertificateIsNamedByWhoHoldsIt) {
  const TlsOptions expired = authority_.Issue("expired", absl::Now() - absl::Minutes(5));
  const absl::Status status = Join(expired);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("expired"), HasSubstr(expired.certificate_path)));
  CoordinatorOptions options;
  options.token = kToken;
  options.tls = expired;
  EXPECT_EQ(CoordinatorServer::Start(options).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(TlsTest, FilesThatDoNotFitAreNamed) {
  const TlsOptions good = authority_.Issue("rank");
  const auto expect = [&](TlsOptions tls, absl::StatusCode code, const std::string& text) {
    const absl::Status status = Make(tls).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  TlsOptions wrong = good;
  wrong.key_path.clear();
  expect(wrong, absl::StatusCode::kInvalidArgument, "tls.key_path: is missing");
  wrong.key_path = "/no/such/file";
  expect(wrong, absl::StatusCode::kNotFound, "tls.key_path: '/no/such/file' cannot be read");
  wrong.key_path = good.certificate_path;
  expect(wrong, absl::StatusCode::kInvalidArgument, "holds no private key");
  wrong.key_path = authority_.Issue("stranger").key_path;
  expect(wrong, absl::StatusCode::kInvalidArgument, "is not the key of the certificate");
  wrong = good;
  wrong.certificate_path = good.key_path;
  expect(wrong, absl::StatusCode::kInvalidArgument, "holds no certificate");
  wrong = good;
  {
    std::ofstream bundle(wrong.ca_path, std::ios::app);
    bundle << std::string(1 << 20, '\n');
  }
  expect(wrong, absl::StatusCode::kInvalidArgument, "is larger than 1048576 bytes");
  wrong.ca_path = other_.certificate_path();
  expect(wrong, absl::StatusCode::kUnauthenticated, "is not valid for the authority");
}

}  // namespace
}  // namespace pelton
