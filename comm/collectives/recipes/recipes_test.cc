// Every recipe, kind and world size: right results, the stated bytes, in place and apart.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/collectives/interpreter.h"
#include "comm/collectives/recipe.h"
#include "comm/reduction/half.h"
#include "comm/reduction/reference.h"
#include "comm/transport/operation_check.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = OperationKind;

constexpr int32_t kWorldSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
constexpr Kind kKinds[] = {Kind::kBarrier,       Kind::kAllReduce, Kind::kReduce,
                           Kind::kReduceScatter, Kind::kAllGather, Kind::kBroadcast,
                           Kind::kGather,        Kind::kScatter,   Kind::kAllToAll};

bool HasInPlaceForm(Kind kind) { return Reduces(kind) || kind == Kind::kAllGather; }

std::string Describe(const ProgramShape& shape) {
  return absl::StrCat(NameOf(shape.kind), " of ", shape.count, " ", NameOf(shape.dtype), " ",
                      NameOf(shape.reduce_op), ", n = ", shape.world_size, ", root ", shape.root);
}

Operation AsOperation(const ProgramShape& shape) {
  Operation operation;
  operation.kind = shape.kind;
  operation.dtype = shape.dtype;
  operation.count = shape.count;
  operation.peer = shape.root;
  return operation;
}

// A world's programs, memory and inputs for one shape (its rank is not looked at).
struct World {
  World(const RecipeTraits& recipe, const ProgramShape& shape, bool in_place) : shape(shape) {
    const size_t size = SizeOf(shape.dtype);
    for (int32_t r = 0; r < shape.world_size; ++r) {
      ProgramShape own = shape;
      own.rank = r;
      programs.push_back(recipe.make(own));
      const Extent extent = ExtentOf(AsOperation(shape), Rank(r), WorldSize(shape.world_size));
      source_bytes.push_back(extent.source_bytes);
      target_bytes.push_back(extent.target_bytes);
      inputs.push_back(
          Random(shape.kind == Kind::kBroadcast ? extent.target_bytes : extent.source_bytes, r));
    }
    for (size_t r = 0; r < programs.size(); ++r) {
      sources.push_back(inputs[r]);
      targets.emplace_back(target_bytes[r], std::byte{0x5c});
      if (shape.kind == Kind::kBroadcast && static_cast<int32_t>(r) == shape.root) {
        targets[r] = inputs[r];
      }
    }
    for (size_t r = 0; r < programs.size(); ++r) {
      std::byte* source = sources[r].data();
      std::byte* target = targets[r].data();
      const size_t chunk = r * shape.count * size;
      if (in_place && shape.kind == Kind::kAllGather) {
        std::copy(sources[r].begin(), sources[r].end(), target + chunk);
        source = target + chunk;
      } else if (in_place) {
        if (target_bytes[r] > 0) target = source + (shape.kind == Kind::kReduceScatter ? chunk : 0);
      }
      ranks.push_back(
          {&programs[r], source, source_bytes[r] / size, target, target_bytes[r] / size});
    }
  }

  Bytes Random(uint64_t bytes, int32_t rank) const {
    std::mt19937_64 random(shape.count * 1000003 + static_cast<uint64_t>(rank));
    Bytes all(bytes);
    for (uint64_t i = 0; i < bytes / SizeOf(shape.dtype); ++i) {
      std::byte* const at = all.data() + i * SizeOf(shape.dtype);
      const auto real =
          static_cast<float>(std::ldexp(static_cast<double>(random() >> 11), -50) - 4);
      const uint64_t bits = random();
      const uint16_t half = BFloat16FromFloat(real);
      if (shape.dtype == DType::kFloat32) std::memcpy(at, &real, 4);
      if (shape.dtype == DType::kBFloat16) std::memcpy(at, &half, 2);
      if (shape.dtype == DType::kInt32) std::memcpy(at, &bits, 4);
      if (shape.dtype == DType::kUInt8) std::memcpy(at, &bits, 1);
    }
    return all;
  }

  // What rank r's target is to hold.
  Bytes Expected(size_t r) const {
    const size_t chunk = shape.count * SizeOf(shape.dtype);
    const auto root = static_cast<size_t>(shape.root);
    auto slice = [&](size_t rank, size_t index) {
      const auto begin = inputs[rank].begin() + static_cast<ptrdiff_t>(index * chunk);
      return Bytes(begin, begin + static_cast<ptrdiff_t>(chunk));
    };
    Bytes all;
    if (target_bytes[r] == 0) return all;
    if (Reduces(shape.kind)) {
      const size_t offset = shape.kind == Kind::kReduceScatter ? r * chunk : 0;
      std::vector<const std::byte*> from;
      for (const Bytes& input : inputs) from.push_back(input.data() + offset);
      all.resize(chunk);
      EXPECT_TRUE(
          ReferenceReduce(from, all.data(), shape.count, shape.dtype, shape.reduce_op).ok());
      return all;
    }
    if (shape.kind == Kind::kBroadcast) return slice(root, 0);
    if (shape.kind == Kind::kScatter) return slice(root, r);
    for (size_t s = 0; s < inputs.size(); ++s) {
      const Bytes part = slice(s, shape.kind == Kind::kAllToAll ? r : 0);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  ProgramShape shape;
  std::vector<Program> programs;
  std::vector<uint64_t> source_bytes;
  std::vector<uint64_t> target_bytes;
  std::vector<Bytes> inputs;
  std::vector<Bytes> sources;
  std::vector<Bytes> targets;
  std::vector<InterpretedRank> ranks;
};

// Sums in another order may differ by a rounding per addition.
bool AreClose(const std::byte* a, const std::byte* b, size_t bytes, int32_t n) {
  for (size_t i = 0; i < bytes; i += 4) {
    float x, y;
    std::memcpy(&x, a + i, 4);
    std::memcpy(&y, b + i, 4);
    if (!(std::abs(x - y) <= 4.0f * static_cast<float>(n * n) * 0x1p-24f)) return false;
  }
  return true;
}

void ExpectResults(const RecipeRegistry::Entry& entry, const World& world, bool in_place) {
  const ProgramShape& shape = world.shape;
  const bool is_exact =
      entry.factory.sums_in_rank_order || !Reduces(shape.kind) || !IsFloatingPoint(shape.dtype);
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    const Bytes expected = world.Expected(r);
    const std::byte* const target = world.ranks[r].target;
    const bool is_right =
        is_exact ? std::equal(expected.begin(), expected.end(), target)
                 : AreClose(expected.data(), target, expected.size(), shape.world_size);
    ASSERT_TRUE(is_right) << entry.name << ", rank " << r << ": " << Describe(shape)
                          << (in_place ? ", in place" : "");
    if (shape.kind == Kind::kAllReduce) {  // SUM-1a
      ASSERT_TRUE(std::equal(target, target + expected.size(), world.ranks[0].target))
          << entry.name << ", rank " << r << ": " << Describe(shape);
    }
    if (!in_place) {
      ASSERT_EQ(world.sources[r], world.inputs[r]) << entry.name << Describe(shape);
    }
  }
}

void ExpectRight(const RecipeRegistry::Entry& entry, const ProgramShape& shape) {
  if (!entry.factory.supports(shape)) return;
  for (bool in_place : {false, true}) {
    if (in_place && !HasInPlaceForm(shape.kind)) continue;
    World world(entry.factory, shape, in_place);
    ASSERT_EQ(Interpret(world.ranks, shape.dtype, shape.reduce_op), "")
        << entry.name << ": " << Describe(shape);
    ExpectResults(entry, world, in_place);
  }
}

// Calls `visit` for every kind, world size, some roots and counts.
void ForAllShapes(const std::function<void(const ProgramShape&)>& visit) {
  for (Kind kind : kKinds) {
    for (int32_t n : kWorldSizes) {
      for (int32_t root = 0; root < (HasRoot(kind) ? n : 1); ++root) {
        const auto chunks = static_cast<uint64_t>(n);
        for (uint64_t count : {uint64_t{0}, uint64_t{1}, chunks - 1, chunks + 1, uint64_t{37}}) {
          visit({.kind = kind, .world_size = n, .root = root, .count = count});
        }
      }
    }
  }
}

TEST(RecipesTest, GiveTheReferenceForEveryKindAndWorldSize) {
  for (const auto& entry : RecipeRegistry::Get().List()) {
    ForAllShapes([&](ProgramShape shape) {
      ExpectRight(entry, shape);
      shape.dtype = DType::kInt32;
      shape.reduce_op = ReduceOp::kAvg;
      ExpectRight(entry, shape);
      shape.reduce_op = ReduceOp::kBitXor;
      ExpectRight(entry, shape);
      if (!entry.factory.rounds_once) return;
      shape.dtype = DType::kBFloat16;
      shape.reduce_op = ReduceOp::kAvg;
      ExpectRight(entry, shape);
    });
  }
}

// Large enough for all strands and for segments that follow each other in a strand.
TEST(RecipesTest, GiveTheReferenceForLargeTensors) {
  for (const auto& entry : RecipeRegistry::Get().List()) {
    for (Kind kind : kKinds) {
      for (int32_t n : {2, 3}) {
        ProgramShape shape{.kind = kind, .world_size = n, .root = n - 1, .dtype = DType::kInt32};
        const bool has_chunks =
            kind != Kind::kAllReduce && kind != Kind::kReduce && kind != Kind::kBroadcast;
        shape.count = has_chunks ? 500'011 : 1'500'007;
        ExpectRight(entry, shape);
      }
    }
  }
}

TEST(RecipesTest, EveryKindHasARecipeThatRoundsOnce) {
  ForAllShapes([&](ProgramShape shape) {
    shape.dtype = DType::kFloat16;
    const auto entries = RecipeRegistry::Get().List();
    EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return entry.factory.supports(shape) && entry.factory.rounds_once;
    })) << Describe(shape);
  });
}

// Elements that a rank sends at most, for the operation's count.
using Formula = std::function<double(double n, double count, bool is_root)>;

double PowerBelow(double n) { return std::exp2(std::floor(std::log2(n))); }

// What the summaries and the files' comments state.
std::map<std::string, Formula> Formulas() {
  auto all = [](double n, double count, bool) { return 2 * (n - 1) / n * count; };
  auto each = [](double n, double count, bool) { return (n - 1) * count; };
  auto once = [](double, double count, bool) { return count; };
  auto none = [](double, double, bool) { return 0.0; };
  // With folded ranks, what they hold and get as well.
  auto folded = [](double n) { return n != PowerBelow(n); };
  std::map<std::string, Formula> formulas = {
      {"direct allreduce", each},
      {"dissemination barrier", none},
      {"ring allreduce", all},
      {"ring reduce_scatter", each},
      {"ring allgather", each},
      {"pairwise allreduce", all},
      {"pairwise reduce", once},
      {"pairwise broadcast", once},
      {"pairwise reduce_scatter", each},
      {"pairwise allgather", each},
      {"pairwise alltoall", each},
      {"pairwise gather", once},
      {"pairwise scatter",
       [](double n, double count, bool is_root) { return is_root ? (n - 1) * count : 0; }},
      {"tree broadcast",
       [](double n, double count, bool) { return std::ceil(std::log2(n)) * count; }},
      {"tree reduce", once},
      {"tree gather", [](double n, double count, bool) { return n / 2 * count; }},
      {"tree scatter", each},
      {"recursive_doubling allreduce",
       [=](double n, double count, bool) {
         return std::log2(PowerBelow(n)) * count + (folded(n) ? count : 0);
       }},
      {"halving_doubling allreduce",
       [=](double n, double count, bool) {
         const double p = PowerBelow(n);
         return 2 * (p - 1) / p * count + (folded(n) ? count : 0);
       }},
      {"halving_doubling reduce_scatter",
       [=](double n, double count, bool) { return (n - 1 + (folded(n) ? 1 : 0)) * count; }},
      {"halving_doubling allgather",
       [=](double n, double count, bool) {
         return (folded(n) ? 2 * PowerBelow(n) + n : n - 1) * count;
       }},
  };
  for (Kind kind : kKinds) formulas[absl::StrCat("alone ", NameOf(kind))] = none;
  return formulas;
}

// No rank sends more than stated, and some rank that much where n is a power of two.
void ExpectStatedBytes(const RecipeRegistry::Entry& entry, const ProgramShape& shape,
                       const Formula& formula) {
  double most = 0;
  double bound = 0;
  for (int32_t r = 0; r < shape.world_size; ++r) {
    ProgramShape own = shape;
    own.rank = r;
    const auto sent = static_cast<double>(SentCount(entry.factory.make(own)));
    const double stated =
        formula(shape.world_size, static_cast<double>(shape.count), r == shape.root);
    // Parts differ by an element, in each of at most 256 segments.
    const double slack = std::min(2.0 * 256, static_cast<double>(shape.count)) * shape.world_size;
    EXPECT_LE(sent, stated + slack) << entry.name << ", rank " << r << ": " << Describe(shape);
    most = std::max(most, sent);
    bound = std::max(bound, stated - slack);
  }
  if (PowerBelow(shape.world_size) != shape.world_size) return;
  EXPECT_GE(most, bound) << entry.name << ": " << Describe(shape);
}

TEST(RecipesTest, SendWhatTheyState) {
  const std::map<std::string, Formula> formulas = Formulas();
  for (const auto& entry : RecipeRegistry::Get().List()) {
    for (Kind kind : kKinds) {
      for (int32_t n : kWorldSizes) {
        for (uint64_t count : {uint64_t{0}, uint64_t{1} << 20, (uint64_t{1} << 33) + 5}) {
          const ProgramShape shape{.kind = kind, .world_size = n, .root = n / 2, .count = count};
          if (!entry.factory.supports(shape)) continue;
          const auto formula = formulas.find(absl::StrCat(entry.name, " ", NameOf(kind)));
          ASSERT_NE(formula, formulas.end()) << entry.name << " " << NameOf(kind);
          ExpectStatedBytes(entry, shape, formula->second);
        }
      }
    }
  }
}

// More elements than 32 bits count: nothing wraps around, all pieces lie where they should.
TEST(RecipesTest, CountsBeyondThirtyTwoBitsStayInBounds) {
  for (const auto& entry : RecipeRegistry::Get().List()) {
    ForAllShapes([&](ProgramShape shape) {
      if (shape.count < 37 || !entry.factory.supports(shape)) return;
      shape.count = (uint64_t{1} << 40) + 12'345'677;
      std::vector<Program> programs;
      std::vector<InterpretedRank> ranks;
      for (shape.rank = 0; shape.rank < shape.world_size; ++shape.rank) {
        programs.push_back(entry.factory.make(shape));
      }
      for (int32_t r = 0; r < shape.world_size; ++r) {
        const Extent extent = ExtentOf(AsOperation(shape), Rank(r), WorldSize(shape.world_size));
        ranks.push_back({&programs[static_cast<size_t>(r)], nullptr, extent.source_bytes / 4,
                         nullptr, extent.target_bytes / 4});
      }
      ASSERT_EQ(CheckPrograms(ranks), "") << entry.name << ": " << Describe(shape);
    });
  }
}

TEST(RecipesTest, SummariesNameStepsAndBytesAndStandInTheDocumentation) {
  std::ifstream file("docs/collectives.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  for (const auto& entry : RecipeRegistry::Get().List()) {
    const std::string row = absl::StrCat("| `", entry.name, "` | ", entry.summary, " |\n");
    EXPECT_NE(page.find(row), std::string::npos) << "docs/collectives.md lacks the line\n" << row;
    EXPECT_NE(entry.summary.find("step"), std::string::npos) << entry.name;
    EXPECT_NE(entry.summary.find("bytes"), std::string::npos) << entry.name;
  }
}

}  // namespace
}  // namespace pelton
