// What every registered algorithm must do, over every transport at hand and several world sizes:
// results against a one-process reference, unused tensors, odd sizes, mixed dtypes, a change of
// plan.
#include <algorithm>
#include <complex>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "algorithms/algorithm.h"
#include "comm/reduction/half.h"
#include "comm/reduction/reference.h"
#include "comm/tiers.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_transports.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/window/test_windows.h"
#include "comm/window/window_source.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/round/model_rounds.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int kRounds = 5;
constexpr int kReplanAfter = 2;
constexpr absl::Duration kPatience = absl::Seconds(60);

std::vector<TensorSpec> Tensors() {
  return {{"empty.bucket", DType::kFloat32, 0, {}},  // the next one's is full
          {"conv.weight", DType::kFloat32, 1000, {}},
          {"conv.bias", DType::kFloat32, 1, {}},
          {"never.used", DType::kFloat32, 17, {}},
          {"empty", DType::kFloat32, 0, {}},
          {"double", DType::kFloat64, 3, {}},
          {"half", DType::kFloat16, 129, {}},
          {"brain", DType::kBFloat16, 33, {}},
          {"steps", DType::kInt32, 7, {}},
          {"long", DType::kInt64, 64, {}},
          {"bytes", DType::kUInt8, 100, {}},
          {"waves", DType::kComplex64, 21, {}},
          {"wide.waves", DType::kComplex128, 6, {}},
          {"fc.weight", DType::kFloat32, 313, {}},
          {"fc.bias", DType::kFloat32, 31, {}}};
}

// Whether `rank` uses the tensor in this round: one nobody ever does, one only rank 0 does, the
// others are left out now and then.
bool Uses(int rank, int round, const TensorSpec& tensor) {
  if (tensor.name == "never.used") return false;
  if (tensor.name == "fc.bias") return rank == 0;
  return (static_cast<size_t>(rank) + static_cast<size_t>(round) + tensor.name.size()) % 5 != 0;
}

void WriteElement(DType dtype, double value, std::byte* to) {
  const auto put = [to](auto typed) { std::memcpy(to, &typed, sizeof(typed)); };
  switch (dtype) {
    case DType::kFloat32:
      return put(static_cast<float>(value));
    case DType::kFloat64:
      return put(value);
    case DType::kFloat16:
      return put(Float16FromFloat(static_cast<float>(value)));
    case DType::kBFloat16:
      return put(BFloat16FromFloat(static_cast<float>(value)));
    case DType::kInt32:
      return put(static_cast<int32_t>(value * 100));
    case DType::kInt64:
      return put(static_cast<int64_t>(value * 1e6));
    case DType::kUInt8:
      return put(static_cast<uint8_t>(static_cast<int>(value) & 7));
    case DType::kComplex64:
      return put(std::complex<float>(static_cast<float>(value), static_cast<float>(1 - value)));
    case DType::kComplex128:
      return put(std::complex<double>(value, 1 - value));
    default:
      PELTON_CHECK(false) << dtype;
  }
}

// What `rank` produces: zeros where it does not use the tensor.
std::vector<std::byte> Gradient(int rank, int round, const TensorSpec& tensor) {
  std::vector<std::byte> bytes(tensor.size_bytes());
  if (!Uses(rank, round, tensor)) return bytes;
  for (uint64_t i = 0; i < tensor.count; ++i) {
    const auto mixed = static_cast<int>((i * 37 + tensor.name.size() * 11) % 97) + rank * 13;
    WriteElement(tensor.dtype, (mixed % 50 - 21) * 0.37 * (round + 1),
                 bytes.data() + i * SizeOf(tensor.dtype));
  }
  return bytes;
}

std::vector<std::byte> Reference(int world_size, int round, const TensorSpec& tensor, ReduceOp op) {
  std::vector<std::vector<std::byte>> sources;
  std::vector<const std::byte*> pointers;
  for (int rank = 0; rank < world_size; ++rank) {
    sources.push_back(Gradient(rank, round, tensor));
    pointers.push_back(sources.back().data());
  }
  std::vector<std::byte> target(tensor.size_bytes());
  PELTON_CHECK_OK(ReferenceReduce(pointers, target.data(), tensor.count, tensor.dtype, op));
  return target;
}

// All ranks are on one host here, and no tiers are open.
AlgorithmOptions OptionsOf(const std::string& name) {
  AlgorithmOptions options;
  const AlgorithmDescription description = *DescriptionOf(name);
  for (const OptionDescription& option : description.options) {
    if (option.name == "hierarchical") options[option.name] = "false";
    if (option.name == "start_round") options[option.name] = "1";  // of power_sgd: it compresses
  }
  return options;
}

// A tensor's bytes after a round on one rank.
struct Held {
  std::vector<std::byte> bytes;
  bool used_by_any = false;
  bool used_is_known = false;
};
using RankLog = std::vector<std::vector<Held>>;  // by round, then slot

// Threads: the rank's own. Owns: everything of one rank, but for its communicator.
class TestRank {
 public:
  TestRank(const std::string& name, Communicator& communicator, WindowSource& windows)
      : communicator_(communicator) {
    algorithm_ = *MakeAlgorithm(name, OptionsOf(name));
    Tiers tiers = Tiers::Of(communicator);
    if (algorithm_->UsesWindows()) tiers.windows = &windows;
    for (TensorSpec& tensor : Tensors()) {
      if (algorithm_->Takes(tensor)) tensors_.push_back(std::move(tensor));
    }
    PlanOptions plan;
    plan.world_size = communicator.world_size();
    plan.bucket_size_bytes = 3000;
    plan.standalone_bytes = 2000;
    plan.constraints = algorithm_->Constraints();
    plan.algorithm = DescribeAlgorithm(name, OptionsOf(name));
    ModelRoundsOptions options;
    options.rank = communicator.rank();
    options.runner = &communicator;
    options.pipeline_factory = [this, tiers](const BucketLayout& layout) {
      absl::StatusOr<Pipeline> made = MakePipeline(*algorithm_, layout, tiers);
      // Weights are there, whoever has used them.
      const bool of_weights = algorithm_->schedule().source == Source::kWeights;
      EXPECT_TRUE(!made.ok() || made->finds_unused() != of_weights);
      return made;
    };
    options.register_region = [this](const Region& region) {
      return communicator_.Register(region);
    };
    options.deregister_region = [this](RegionId region) { communicator_.Deregister(region); };
    options.operation_timeout = kPatience;
    rounds_ = *ModelRounds::Create(*Plan::Build(tensors_, plan), std::move(options));
  }

  absl::StatusOr<RankLog> Run() {
    RankLog log;
    for (int round = 0; round < kRounds; ++round) {
      RETURN_IF_ERROR(Produce(round));
      RETURN_IF_ERROR(rounds_->EndRound());
      RETURN_IF_ERROR(rounds_->WaitRound(absl::Now() + kPatience));
      log.push_back(Results());
      if (round != kReplanAfter) continue;
      ASSIGN_OR_RETURN(const std::vector<SlotId> order,
                       rounds_->AgreeOnOrder(absl::Now() + kPatience));
      RETURN_IF_ERROR(rounds_->Replan(order, absl::Now() + kPatience));
    }
    return log;
  }

  const Algorithm& algorithm() const { return *algorithm_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

 private:
  absl::Status Produce(int round) {
    const int rank = communicator_.rank().value();
    memory_.assign(tensors_.size(), {});
    for (size_t i = 0; i < tensors_.size(); ++i) {
      // A different order on each rank.
      const size_t index = (i * 7 + static_cast<size_t>(rank)) % tensors_.size();
      const SlotId slot(static_cast<int32_t>(index));
      if (!Uses(rank, round, tensors_[index])) continue;
      memory_[index] = Gradient(rank, round, tensors_[index]);
      if (rounds_->plan().slot(slot).standalone) {
        RETURN_IF_ERROR(rounds_->MarkReady(slot, memory_[index].data()));
        continue;
      }
      std::copy(memory_[index].begin(), memory_[index].end(), rounds_->DataOf(slot));
      RETURN_IF_ERROR(rounds_->MarkReady(slot));
    }
    return absl::OkStatus();
  }

  std::vector<Held> Results() const {
    std::vector<Held> results;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const SlotId slot(static_cast<int32_t>(i));
      const SlotResult result = rounds_->ResultOf(slot);
      results.push_back({{result.data, result.data + result.size_bytes},
                         result.used_by_any,
                         algorithm_->schedule().source != Source::kWeights});
    }
    return results;
  }

  Communicator& communicator_;
  std::unique_ptr<Algorithm> algorithm_;
  std::vector<TensorSpec> tensors_;
  std::vector<std::vector<std::byte>> memory_;
  std::unique_ptr<ModelRounds> rounds_;
};

// The transports of a new world; what they share goes into `keep`.
struct TestWorld {
  std::shared_ptr<void> keep;  // of a type that differs by transport
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(int rank)> make_transport;
};

TestWorld SimWorld(int world_size) {
  auto fabric = std::make_shared<SimFabric>(WorldSize(world_size));
  return {fabric, [fabric](int rank) -> absl::StatusOr<std::unique_ptr<Transport>> {
            return fabric->MakeTransport(Rank(rank));
          }};
}

TestWorld ShmWorld(int world_size) {
  auto place = std::make_shared<shm::MeetingPlace>(world_size);
  return {place, [place, world_size](int rank) {
            shm::TestBootstrap bootstrap(*place, rank);
            return MakeShmTransport(
                {Rank(rank), WorldSize(world_size), "token", &bootstrap, absl::Now() + kPatience});
          }};
}

struct Wire {
  std::string name;
  TestWorld (*make)(int world_size);
};
using Parameter = std::tuple<std::string, Wire, int>;  // algorithm, transport, world size

class AlgorithmConformanceTest : public ::testing::TestWithParam<Parameter> {
 protected:
  const std::string& algorithm() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<2>(GetParam()); }

  // Runs all ranks, each on a thread of its own; by rank.
  std::vector<RankLog> RunWorld() {
    const TestWorld world = std::get<1>(GetParam()).make(world_size());
    TestWindows windows(world_size());
    std::vector<absl::StatusOr<RankLog>> logs(static_cast<size_t>(world_size()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size(); ++rank) {
      threads.emplace_back(
          [&, rank] { logs[static_cast<size_t>(rank)] = RunRank(world, windows, rank); });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<RankLog> result;
    for (absl::StatusOr<RankLog>& log : logs) {
      EXPECT_TRUE(log.ok()) << log.status();
      result.push_back(log.ok() ? *std::move(log) : RankLog());
    }
    return result;
  }

  absl::StatusOr<RankLog> RunRank(const TestWorld& world, TestWindows& windows, int rank) {
    ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, world.make_transport(rank));
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                     transport->Open(CommunicatorId(1), Group::World(WorldSize(world_size())),
                                     absl::Now() + kPatience));
    TestRank test_rank(algorithm(), *communicator, windows.source(rank));
    return test_rank.Run();
  }
};

TEST_P(AlgorithmConformanceTest, ResultsAreWhatItPromises) {
  const std::unique_ptr<Algorithm> promised = *MakeAlgorithm(algorithm(), {});
  std::vector<TensorSpec> tensors;
  for (TensorSpec& tensor : Tensors()) {
    if (promised->Takes(tensor)) tensors.push_back(std::move(tensor));
  }
  const std::vector<RankLog> logs = RunWorld();
  if (HasFailure()) return;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t slot = 0; slot < tensors.size(); ++slot) {
      const std::string where = absl::StrCat("round ", round, ", tensor ", tensors[slot].name);
      const std::optional<ReduceOp> op = promised->EqualsReduction(tensors[slot].dtype);
      const std::vector<std::byte>& first = logs[0][static_cast<size_t>(round)][slot].bytes;
      if (op.has_value()) {
        EXPECT_EQ(first, Reference(world_size(), round, tensors[slot], *op)) << where;
      }
      for (const RankLog& log : logs) {
        if (promised->RanksAgree()) {
          EXPECT_EQ(log[static_cast<size_t>(round)][slot].bytes, first) << where;
        }
      }
    }
  }
}

TEST_P(AlgorithmConformanceTest, KnowsWhatNobodyUsed) {
  const std::unique_ptr<Algorithm> promised = *MakeAlgorithm(algorithm(), {});
  const std::vector<RankLog> logs = RunWorld();
  if (HasFailure()) return;
  int unused = 0;
  for (int round = 0; round < kRounds; ++round) {
    size_t slot = 0;
    for (const TensorSpec& tensor : Tensors()) {
      if (!promised->Takes(tensor)) continue;
      bool used = false;
      for (int rank = 0; rank < world_size(); ++rank) used |= Uses(rank, round, tensor);
      for (const RankLog& log : logs) {
        const Held& held = log[static_cast<size_t>(round)][slot];
        EXPECT_EQ(held.used_by_any, used || !held.used_is_known)
            << "round " << round << ", tensor " << tensor.name;
        unused += held.used_is_known && !held.used_by_any;
      }
      ++slot;
    }
  }
  // Weights are there whether they were used or not.
  if (promised->schedule().source == Source::kWeights) return;
  EXPECT_GT(unused, 0) << "the case was never met";
}

TEST_P(AlgorithmConformanceTest, RunsRepeatBitByBit) {
  const std::vector<RankLog> once = RunWorld();
  const std::vector<RankLog> again = RunWorld();
  // Without the promise the two runs have to come to their ends, and no more.
  if (HasFailure() || !(*MakeAlgorithm(algorithm(), {}))->Repeats()) return;
  for (size_t rank = 0; rank < once.size(); ++rank) {
    for (size_t round = 0; round < once[rank].size(); ++round) {
      for (size_t slot = 0; slot < once[rank][round].size(); ++slot) {
        EXPECT_EQ(once[rank][round][slot].bytes, again[rank][round][slot].bytes)
            << "rank " << rank << ", round " << round << ", slot " << slot;
      }
    }
  }
}

TEST(AlgorithmRegistryTest, RefusesOptionsItDoesNotKnow) {
  ASSERT_FALSE(AlgorithmRegistry::Get().List().empty());
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    const absl::Status status = MakeAlgorithm(entry.name, {{"no such option", "1"}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << entry.name;
    EXPECT_NE(status.message().find("no such option"), std::string::npos) << status;
  }
  EXPECT_EQ(MakeAlgorithm("no_such", {}).status().code(), absl::StatusCode::kNotFound);
}

std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const auto& entry : AlgorithmRegistry::Get().List()) names.push_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, AlgorithmConformanceTest,
                         ::testing::Combine(::testing::ValuesIn(AllNames()),
                                            ::testing::Values(Wire{"sim", SimWorld},
                                                              Wire{"shm", ShmWorld}),
                                            ::testing::Values(1, 2, 3, 8)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param).name, "_",
                                               std::get<2>(info.param), "_ranks");
                         });

}  // namespace
}  // namespace pelton
