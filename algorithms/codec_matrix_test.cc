// Every algorithm with every codec, flat and hierarchical: the pair is taken, and then rounds end
// well with what the algorithm promises, or the option is refused with a reason. docs/codecs.md has
// the same table. Pipelines in a GPU's memory are made here, over a stand-in of its kernels;
// backend/gpu_model_test.cc runs rounds of those.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"
#include "algorithms/test_world.h"
#include "comm/tiers.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/memory/device_queue.h"
#include "core/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

struct Cell {
  std::string algorithm;
  std::string codec;
  bool is_hierarchical;

  friend void PrintTo(const Cell& cell, std::ostream* out) {
    *out << cell.algorithm << " with " << cell.codec;
  }
};

std::vector<Cell> Matrix() {
  std::vector<Cell> cells;
  for (const AlgorithmRegistry::Entry& algorithm : AlgorithmRegistry::Get().List()) {
    for (const CodecRegistry::Entry& codec : CodecRegistry::Get().List()) {
      cells.push_back({algorithm.name, codec.name, false});
      cells.push_back({algorithm.name, codec.name, true});
    }
  }
  return cells;
}

bool HasOption(const std::string& algorithm, const std::string& name) {
  const AlgorithmDescription description = *DescriptionOf(algorithm);
  return std::any_of(description.options.begin(), description.options.end(),
                     [&](const OptionDescription& option) { return option.name == name; });
}

// With these every algorithm that takes a codec moves all ranks' mean by as much as they have moved
// on average, in each round.
AlgorithmOptions OptionsOf(const Cell& cell) {
  AlgorithmOptions options = {{"codec", cell.codec}};
  if (cell.codec == "top_k") options["codec.ratio"] = "0.5";  // an element waits two rounds or so
  if (cell.is_hierarchical || HasOption(cell.algorithm, "hierarchical")) {
    options["hierarchical"] = cell.is_hierarchical ? "true" : "false";
  }
  if (cell.algorithm == "diloco") {
    options["outer_learning_rate"] = "1";
    options["outer_momentum"] = "0";
  }
  if (cell.algorithm == "slowmo") options["slow_momentum"] = "0";
  return options;
}

// Why `option` is refused, without what every such error begins with; "" if that is not so.
std::string RefusalOf(const absl::Status& status, const std::string& option) {
  const std::string beginning = absl::StrCat("there is no option ", option, ": ");
  const std::string text(status.message());
  const size_t found = text.find(beginning);
  return found == std::string::npos ? "" : text.substr(found + beginning.size());
}

// The registered algorithms that a text names.
std::set<std::string> AlgorithmsIn(const std::string& text) {
  std::set<std::string> names;
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" ,;.:`|()"))) {
    if (AlgorithmRegistry::Get().Find(std::string(word)).ok()) names.emplace(word);
  }
  return names;
}

// A sentence, which sends nobody to an algorithm that has not the option either.
void ExpectIsAReason(const std::string& reason, const std::string& option) {
  const std::vector<std::string> words = absl::StrSplit(reason, ' ', absl::SkipWhitespace());
  EXPECT_GE(words.size(), 5U) << "'" << reason << "'";
  for (const std::string& name : AlgorithmsIn(reason)) {
    EXPECT_TRUE(HasOption(name, option)) << name << " is named by '" << reason << "'";
  }
}

class CodecMatrixTest : public ::testing::TestWithParam<Cell> {
 protected:
  static constexpr int32_t kRanks = 4;
  static constexpr size_t kElements = 301;

  // The option that the algorithm has not: "" if it has all of them.
  static std::string Lacks() {
    if (!HasOption(GetParam().algorithm, "codec")) return "codec";
    const bool lacks =
        GetParam().is_hierarchical && !HasOption(GetParam().algorithm, "hierarchical");
    return lacks ? "hierarchical" : "";
  }

  static std::vector<int32_t> HostSizes() {
    if (!GetParam().is_hierarchical) return std::vector<int32_t>(kRanks, 1);
    return {3, 1};
  }

  static TestRanksOptions RanksOf(const Algorithm& algorithm, const AlgorithmOptions& chosen) {
    TestRanksOptions options;
    options.algorithm = GetParam().algorithm;
    options.options = chosen;
    options.host_sizes = HostSizes();
    options.tensors = {{"a", DType::kFloat32, kElements, {}}};
    EXPECT_TRUE(algorithm.Takes(options.tensors[0])) << "every codec takes float32";
    return options;
  }

  // How far `rank` moves element i from where all ranks begin.
  static float Step(int32_t rank, size_t i) {
    const size_t number = i * 5 + static_cast<size_t>(rank) * 7;
    return static_cast<float>(number % 19) * 0.1F - 0.7F;
  }
  static constexpr float kLargestStep = 1.1F;

  static std::vector<double> DriftsOf(const AlgorithmOptions& options, int rounds);

 private:
  // `means` become those of weights, or have those of gradients added.
  static void AddMeans(const std::vector<Values>& ranks, bool of_weights,
                       std::vector<double>& means) {
    for (size_t i = 0; i < kElements; ++i) {
      if (of_weights) means[i] = 0;
      for (const Values& rank : ranks) means[i] += static_cast<double>(rank[0][i]) / kRanks;
    }
  }
  // The largest distance of an element from where `rounds` rounds of steps have led it.
  static double DistanceOf(const std::vector<double>& means, const std::vector<float>& start,
                           int rounds) {
    double largest = 0;
    for (size_t i = 0; i < kElements; ++i) {
      double expected = start[i];
      for (int32_t rank = 0; rank < kRanks; ++rank) {
        expected += rounds * static_cast<double>(Step(rank, i)) / kRanks;
      }
      largest = std::max(largest, std::abs(means[i] - expected));
    }
    return largest;
  }
};

TEST_P(CodecMatrixTest, IsTakenOrRefusedWithAReason) {
  const absl::StatusOr<std::unique_ptr<Algorithm>> made =
      MakeAlgorithm(GetParam().algorithm, OptionsOf(GetParam()));
  const std::string lacks = Lacks();
  if (lacks.empty()) {
    EXPECT_TRUE(made.ok()) << made.status();
    return;
  }
  ASSERT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  ExpectIsAReason(RefusalOf(made.status(), lacks), lacks);
}

// The kernels of a GPU by the CPU's code; they run on no GPU here.
void UseStandInKernels() {
  setenv("PELTON_CUDART_LIBRARY", stand_in::LibraryPath().c_str(), 1);
  setenv("PELTON_KERNELS_LIBRARY", "algorithms/codec/cuda/stand_in/libpelton_kernels_stand_in.so",
         1);
}

// How far the ranks' mean is from where their steps have led it, at most; by round. Gradients are
// added up, weights go on from what the round before has left.
std::vector<double> CodecMatrixTest::DriftsOf(const AlgorithmOptions& options, int rounds) {
  const std::unique_ptr<Algorithm> algorithm = *MakeAlgorithm(GetParam().algorithm, options);
  TestWorld world(RanksOf(*algorithm, options));
  const bool of_weights = algorithm->schedule().source == Source::kWeights;
  Values start = {std::vector<float>(kElements)};
  for (size_t i = 0; of_weights && i < kElements; ++i) start[0][i] = static_cast<float>(i % 5) - 2;
  world.Prime(start);
  std::vector<double> means(start[0].begin(), start[0].end());
  std::vector<double> drifts;
  std::vector<Values> held(kRanks, start);
  for (int round = 1; round <= rounds; ++round) {
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      for (size_t i = 0; i < kElements; ++i) held[rank][0][i] += Step(rank, i);
    }
    held = world.Round(held);
    if (algorithm->RanksAgree()) {
      for (const Values& rank : held) EXPECT_EQ(rank, held[0]) << "round " << round;
    }
    EXPECT_NE(held[0], start) << "round " << round;
    AddMeans(held, of_weights, means);
    drifts.push_back(DistanceOf(means, start[0], round));
    if (!of_weights) held.assign(kRanks, start);
  }
  EXPECT_GT(world.SentBytes(), 0);
  return drifts;
}

// What each codec may lose it loses at most three times: of a rank's message, of the mean's, and of
// a host's. Without error feedback it does so in each round; with it, what a message lacks the next
// ones make up for, so that the mean is no farther off after many rounds than after one.
TEST_P(CodecMatrixTest, RoundsKeepTheMeanOfTheRanksUpToTheCodecsError) {
  if (!Lacks().empty()) return;  // the other test holds the reason
  constexpr int kRounds = 24;
  const std::unique_ptr<Codec> codec = *MakeCodec(GetParam().codec, {});
  const double lost = 3 * codec->Bound().of_largest * kLargestStep;
  const std::vector<double> drifts = DriftsOf(OptionsOf(GetParam()), kRounds);
  for (int round = 1; round <= kRounds; ++round) {
    const double most = codec->NeedsErrorFeedback() ? lost : round * lost;
    EXPECT_LE(drifts[round - 1], most + 1e-5 * round) << "round " << round;
  }
  if (!codec->NeedsErrorFeedback() || !HasOption(GetParam().algorithm, "error_feedback")) return;
  AlgorithmOptions options = OptionsOf(GetParam());
  options["error_feedback"] = "false";
  EXPECT_GT(DriftsOf(options, kRounds).back(), 3 * drifts.back()) << "it needs no error feedback";
}

// A GPU that nothing runs on: buckets lie there, and pipelines are made for them.
// Threads: one. Owns: the memory.
class IdleGpu final : public DeviceQueue {
 public:
  absl::StatusOr<std::byte*> Allocate(size_t size_bytes) override {
    return memory_.emplace_back(size_bytes).data();
  }
  void Release(std::byte*) override {}
  Stream& stream() override { return stream_; }
  absl::Status Enqueue(absl::FunctionRef<absl::Status(Stream&)>) override { return Idle(); }
  absl::Status Zero(std::byte*, size_t) override { return Idle(); }
  absl::Status MarkReady(BucketId) override { return Idle(); }
  absl::Status JoinPipelines() override { return Idle(); }
  absl::Status AwaitReady(BucketId) override { return Idle(); }
  absl::Status Fill(std::byte*, uint8_t, size_t) override { return Idle(); }
  absl::Status Write(std::byte*, const void*, size_t, absl::Time) override { return Idle(); }
  absl::Status Read(void*, const std::byte*, size_t, absl::Time) override { return Idle(); }

 private:
  class CudaStream final : public Stream {
   public:
    DeviceKind device() const override { return DeviceKind::kCuda; }
  };
  static absl::Status Idle() { return absl::UnimplementedError("an idle GPU"); }

  CudaStream stream_;
  std::list<std::vector<std::byte>> memory_;
};

// Whether a pipeline is made for a bucket in a GPU's memory is what the algorithm says, flat and
// hierarchical alike. Rank 0 leads its host, so that its stages are all that there are.
TEST_P(CodecMatrixTest, InAGpusMemoryAPipelineIsMadeOrRefusedWithAReason) {
  UseStandInKernels();
  if (!Lacks().empty()) return;
  const std::unique_ptr<Algorithm> algorithm =
      *MakeAlgorithm(GetParam().algorithm, OptionsOf(GetParam()));
  PlanOptions options;
  options.world_size = WorldSize(kRanks);
  options.constraints = algorithm->Constraints();
  const Plan plan =
      *Plan::Build({{"a", DType::kFloat32, kElements, {DeviceKind::kCuda, 0}}}, options);
  SimFabric fabric{WorldSize(kRanks)};
  const auto opened = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(kRanks)));
  const auto host = *fabric.OpenAll(CommunicatorId(2), {{Rank(0), Rank(1), Rank(2)}, {}});
  const auto leaders = *fabric.OpenAll(CommunicatorId(3), {{Rank(0), Rank(3)}, {}});
  IdleGpu gpu;
  Tiers tiers = Tiers::Of(*opened[0]);
  if (algorithm->IsHierarchical()) {
    tiers.host = host[0].get();
    tiers.leaders = leaders[0].get();
    tiers.host_sizes = HostSizes();
  }
  tiers.device = &gpu;
  const absl::Status made = MakePipeline(*algorithm, plan.buckets()[0], tiers).status();
  EXPECT_EQ(made.ok(), algorithm->TakesDeviceMemory()) << made;
  if (made.ok()) return;
  EXPECT_EQ(made.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.message()), HasSubstr("on cuda memory"));
}

INSTANTIATE_TEST_SUITE_P(, CodecMatrixTest, ::testing::ValuesIn(Matrix()), [](const auto& info) {
  return absl::StrCat(info.param.algorithm, "_with_", info.param.codec,
                      info.param.is_hierarchical ? "_hierarchical" : "_flat");
});

// The names in backquotes of one cell of a table.
std::set<std::string> NamesIn(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '`');
  std::set<std::string> names;
  for (size_t i = 1; i < parts.size(); i += 2) names.insert(parts[i]);
  return names;
}

// A row of the table "Where codecs go", by the names of its columns.
using Row = std::map<std::string, std::string>;

std::map<std::string, Row> DocumentedRows() {
  std::ifstream file("docs/codecs.md");
  EXPECT_TRUE(file.is_open());
  std::map<std::string, Row> rows;
  std::vector<std::string> columns;
  bool is_there = false;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "## ")) is_there = line == "## Where codecs go";
    if (!is_there || !absl::StartsWith(line, "|") || absl::StartsWith(line, "| ---")) continue;
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    for (std::string& cell : cells) cell = std::string(absl::StripAsciiWhitespace(cell));
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    Row row;
    for (size_t i = 0; i < cells.size() && i < columns.size(); ++i) row[columns[i]] = cells[i];
    for (const std::string& name : NamesIn(row["algorithm"])) rows[name] = row;
  }
  return rows;
}

// The codecs with which the algorithm leaves a bucket in a GPU's memory, where there are kernels.
std::set<std::string> CodecsOnAGpu(const std::string& algorithm) {
  std::set<std::string> names;
  for (const CodecRegistry::Entry& codec : CodecRegistry::Get().List()) {
    const absl::StatusOr<std::unique_ptr<Algorithm>> made =
        MakeAlgorithm(algorithm, {{"codec", codec.name}});
    if (made.ok() && (*made)->TakesDeviceMemory()) names.insert(codec.name);
  }
  return names;
}

TEST(CodecTableTest, TheDocumentSaysOfEveryAlgorithmWhatItTakes) {
  UseStandInKernels();
  std::map<std::string, Row> rows = DocumentedRows();
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    ASSERT_TRUE(rows.contains(entry.name)) << entry.name << " has no row";
    Row& row = rows[entry.name];
    const bool takes = HasOption(entry.name, "codec");
    EXPECT_EQ(!row["what is encoded"].empty(), takes) << entry.name;
    EXPECT_EQ(!row["or why nothing is"].empty(), !takes) << entry.name;
    const absl::Status refused = MakeAlgorithm(entry.name, {{"codec", "float16"}}).status();
    EXPECT_EQ(AlgorithmsIn(row["or why nothing is"]), AlgorithmsIn(RefusalOf(refused, "codec")))
        << entry.name;
    EXPECT_EQ(row["hierarchical"] == "yes", takes && HasOption(entry.name, "hierarchical"))
        << entry.name;
    EXPECT_EQ(NamesIn(row["in a GPU's memory"]), CodecsOnAGpu(entry.name)) << entry.name;
    rows.erase(entry.name);
  }
  for (const auto& [name, row] : rows) ADD_FAILURE() << name << " is no registered algorithm";
}

}  // namespace
}  // namespace pelton
