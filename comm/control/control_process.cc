// A coordinator or a rank as a process of its own, for tests that kill it. Says what happens on
// standard output, a line each, and ends in good order when its standard input is closed.
//   control_process serve <token>
//   control_process join <address> <token> <rank> <world size>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "comm/control/coordinator_server.h"
#include "comm/control/grpc_control.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

absl::Time Late() { return Clock::Real().Now() + absl::Seconds(60); }

void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

void AwaitEndOfInput() {
  while (std::getchar() != EOF) {
  }
}

int Serve(const std::string& token) {
  auto server = CoordinatorServer::Start({.token = token});
  PELTON_CHECK_OK(server.status());
  Say((*server)->address());
  AwaitEndOfInput();
  return 0;
}

int Join(char** arguments) {
  auto control = MakeGrpcControl({.address = arguments[0],
                                  .token = arguments[1],
                                  .heartbeat_interval = absl::Milliseconds(50)});
  PELTON_CHECK_OK(control.status());
  (*control)->OnOrder([](const Order& order) {
    Say(absl::StrCat("order of culprit ", order.culprit.value_or(Rank(-1)).value(), ": ",
                     order.reason.message()));
  });
  const auto membership = (*control)->Join({.job = "job",
                                            .rank = Rank(std::atoi(arguments[2])),
                                            .world_size = WorldSize(std::atoi(arguments[3])),
                                            .host = HostIdentity::OfThisProcess()},
                                           Late());
  PELTON_CHECK_OK(membership.status());
  Say("joined");
  AwaitEndOfInput();
  const absl::Status left = (*control)->Leave(Late());
  Say(left.ok() ? "left" : std::string(left.message()));
  return 0;
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "serve" && argc == 3) return pelton::Serve(argv[2]);
  if (mode == "join" && argc == 6) return pelton::Join(argv + 2);
  std::fprintf(stderr, "usage: %s serve <token> | join <address> <token> <rank> <world>\n",
               argv[0]);
  return 2;
}
