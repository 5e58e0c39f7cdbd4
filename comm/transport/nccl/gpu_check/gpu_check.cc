// gpu_check [--ranks N] [--largest BYTES] [conformance] [bandwidth] [neighbors]
//
// Runs the transports' conformance suite over NCCL on a GPU, and measures what transport/nccl adds
// to raw NCCL, in allreduces and, with two ranks, in averages of neighbours. tools/gpu_check finds
// the libraries and starts it. Exit status: 0 all is well, 1 something failed, 2 wrong usage, 3
// there is no GPU, or no library to use it with.
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "comm/transport/conformance_test.h"
#include "comm/transport/nccl/gpu_check/bandwidth.h"
#include "comm/transport/nccl/gpu_check/staged_transport.h"
#include "comm/transport/nccl/gpu_world.h"
#include "comm/transport/nccl/operation_map.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kNoGpu = 3;

// All ranks share the machine's one GPU, if NCCL lets them; else there is one rank.
constexpr char kOneRankCases[] =
    "*OnOneRank*:*AWakeFromAnotherThread*:*TheFirstReasonStays*:*AnOldOrUnknownCompletion*";
constexpr char kTwoRankCases[] =
    ":*OnTwoRanks*:*OnTwoRanks:*EveryReducedType*:*AnExchangeDoesNotDeadlock*:*TagsMatch*"
    ":*OneTagMatches*:*PointToPointDoesNot*:*ProgressAfterCompletion*:*NotDoneBeforeTheLast*"
    ":*TwoCommunicators*:*ParkEndsAtItsTime*:*APairThatIsNotPromised*:*LaunchRefuses*";

const cuda::CudaRuntime* runtime = nullptr;

// Over the libraries that the environment names, on the process's first GPU.
class GpuFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    NcclOptions options;
    options.device = 0;
    world_.emplace(world_size, options, /*one_device_each=*/false);
    std::vector<std::unique_ptr<Transport>> staged;
    for (std::unique_ptr<Transport>& transport : world_->transports()) {
      staged.push_back(MakeStagedTransport(std::move(transport), *runtime, 0));
    }
    return staged;
  }

  TransportPromises promises() const override {
    TransportPromises promises;
    promises.reduces = &nccl::Reduces;
    promises.reduces_like_the_reference = false;
    promises.has_tags = false;
    promises.survives_disagreement = false;
    return promises;
  }

 private:
  std::optional<GpuWorld> world_;
};

INSTANTIATE_TEST_SUITE_P(Gpu, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<GpuFixture>));

struct Choice {
  std::set<std::string> stages;
  BandwidthOptions bandwidth;
};

bool Parse(int argc, char** argv, Choice& choice) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "conformance" || word == "bandwidth" || word == "neighbors") {
      choice.stages.insert(word);
    } else if (i + 1 < argc && word == "--ranks") {
      if (!absl::SimpleAtoi(argv[++i], &choice.bandwidth.rank_count)) return false;
    } else if (i + 1 < argc && word == "--largest") {
      if (!absl::SimpleAtoi(argv[++i], &choice.bandwidth.largest_bytes)) return false;
    } else {
      return false;
    }
  }
  if (choice.stages.empty()) choice.stages = {"conformance", "bandwidth", "neighbors"};
  return choice.bandwidth.rank_count > 0;
}

int NoGpu(const absl::Status& why) {
  // ALLOW: this is a program
  std::cout << "gpu_check: no GPU here: " << why.message() << '\n';
  return kNoGpu;
}

bool RunConformance(int rank_count) {
  std::string filter = kOneRankCases;
  if (rank_count > 1) filter += kTwoRankCases;
  testing::GTEST_FLAG(filter) = filter;
  const bool passed = RUN_ALL_TESTS() == 0;
  const testing::UnitTest& suite = *testing::UnitTest::GetInstance();
  // ALLOW: this is a program
  std::cout << "conformance: " << suite.successful_test_count() << " of "
            << suite.total_test_count() << " cases passed, " << suite.failed_test_count()
            << " failed; the others need more ranks than " << rank_count << '\n';
  return passed && suite.successful_test_count() > 0;
}

bool RunNeighbors(BandwidthOptions options, const nccl::NcclLibrary& library) {
  if (options.rank_count != 2) {
    // ALLOW: this is a program
    std::cout << "neighbors: needs 2 ranks\n";
    return true;
  }
  options.exchange = Exchange::kNeighbors;
  // ALLOW: this is a program
  return RunBandwidth(options, library, *runtime, std::cout);
}

int Main(int argc, char** argv) {
  Choice choice;
  testing::InitGoogleTest(&argc, argv);
  if (!Parse(argc, argv, choice)) {
    // ALLOW: this is a program
    std::cerr << "usage: gpu_check [--ranks N] [--largest BYTES] [conformance] [bandwidth] "
                 "[neighbors]\n";
    return kUsage;
  }
  const auto loaded = cuda::CudaRuntime::Load();
  if (!loaded.ok()) return NoGpu(loaded.status());
  if ((*loaded)->device_count() == 0) {
    return NoGpu(absl::FailedPreconditionError((*loaded)->WhyNoDevice()));
  }
  const auto library = nccl::NcclLibrary::Load();
  if (!library.ok()) return NoGpu(library.status());
  runtime = loaded->get();
  // ALLOW: this is a program
  std::cout << (*library)->Describe() << ", CUDA runtime " << runtime->version() << " ("
            << runtime->path() << "), " << runtime->device_count() << " device(s), "
            << choice.bandwidth.rank_count << " rank(s) on the first\n";
  bool passed = true;
  if (choice.stages.count("conformance") > 0) {
    passed = RunConformance(choice.bandwidth.rank_count) && passed;
  }
  if (choice.stages.count("bandwidth") > 0) {
    // ALLOW: this is a program
    passed = RunBandwidth(choice.bandwidth, **library, *runtime, std::cout) && passed;
  }
  if (choice.stages.count("neighbors") > 0) {
    passed = RunNeighbors(choice.bandwidth, **library) && passed;
  }
  return passed ? 0 : kFailed;
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) { return pelton::Main(argc, argv); }
