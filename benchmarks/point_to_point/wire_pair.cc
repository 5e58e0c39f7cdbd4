// One rank of a pair: `wire_pair RANK INTERFACE FOLDER TURNS PATIENCE_SECONDS WIRE`; WIRE is "tcp"
// or "ucx". Rank 0 prints, per size, the median seconds of a ping-pong (there and back), and of a
// 64 MiB send until its answer. The ranks meet through files in FOLDER.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/transport.h"
#include "core/base/check.h"

namespace pelton {
namespace {

absl::Duration patience;

absl::Time Soon() { return absl::Now() + patience; }

// Threads: one. Owns: nothing.
class FileBootstrap : public Bootstrap {
 public:
  FileBootstrap(std::string folder, int rank) : folder_(std::move(folder)), rank_(rank) {}
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) override {
    const std::string own = absl::StrCat(folder_, "/", key, rank_);
    std::ofstream(own + ".new") << value;
    std::filesystem::rename(own + ".new", own);
    std::vector<std::string> all;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string path = absl::StrCat(folder_, "/", key, rank);
      while (!std::filesystem::exists(path)) {
        if (absl::Now() > deadline) return absl::DeadlineExceededError(path);
        absl::SleepFor(absl::Milliseconds(1));  // ALLOW: before the measurement, for a process
      }
      std::ifstream file(path);
      all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return all;
  }

 private:
  const std::string folder_;
  const int rank_;
};

void Move(Communicator& communicator, bool sends, std::vector<char>& bytes) {
  const Tensor tensor{bytes.data(), bytes.size(), DType::kUInt8};
  const Rank peer(1 - communicator.rank().value());
  const auto done = sends ? Send(communicator, tensor, peer) : Recv(communicator, tensor, peer);
  PELTON_CHECK(done.ok()) << done.status();
  PELTON_CHECK_OK(Await(communicator, *done, Soon()));
}

// Median seconds of `turns` exchanges: `out_bytes` there, `back_bytes` back.
double Time(Communicator& communicator, size_t out_bytes, size_t back_bytes, int turns) {
  std::vector<char> out(out_bytes, 1);
  std::vector<char> back(back_bytes, 2);
  const bool is_first = communicator.rank() == Rank(0);
  std::vector<double> seconds;
  for (int turn = 0; turn < turns + 2; ++turn) {
    const absl::Time begin = absl::Now();
    Move(communicator, is_first, out);
    Move(communicator, !is_first, back);
    if (turn >= 2) seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
  }
  std::nth_element(seconds.begin(), seconds.begin() + turns / 2, seconds.end());
  return seconds[static_cast<size_t>(turns / 2)];
}

int Run(int rank, const std::string& interface, const std::string& folder, int turns,
        const std::string& wire) {
  FileBootstrap bootstrap(folder, rank);
  TransportOptions options;
  options.rank = Rank(rank);
  options.world_size = WorldSize(2);
  options.job_token = "benchmark";
  options.bootstrap = &bootstrap;
  options.deadline = Soon();
  options.interface = interface;
  const auto entry = TransportRegistry::Get().Find(wire);
  PELTON_CHECK(entry.ok()) << entry.status();
  auto transport = entry->factory(options);
  PELTON_CHECK(transport.ok()) << transport.status();
  auto opened = (*transport)->Open(CommunicatorId(1), Group::World(WorldSize(2)), Soon());
  PELTON_CHECK(opened.ok()) << opened.status();
  Communicator& communicator = **opened;
  const auto print = [&](const char* what, size_t bytes, double seconds) {
    if (rank == 0) std::printf("%s %zu %.9f\n", what, bytes, seconds), std::fflush(stdout);
  };
  for (const size_t bytes : {size_t{8}, size_t{4096}}) {
    print("pingpong", bytes, Time(communicator, bytes, bytes, turns * 100));
  }
  print("stream", size_t{64} << 20, Time(communicator, size_t{64} << 20, 1, turns));
  opened->reset();
  return 0;
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) {
  PELTON_CHECK(argc == 7) << "wire_pair RANK INTERFACE FOLDER TURNS PATIENCE_SECONDS WIRE";
  pelton::patience = absl::Seconds(std::atoi(argv[5]));
  return pelton::Run(std::atoi(argv[1]), argv[2], argv[3], std::atoi(argv[4]), argv[6]);
}
