// Runs a fuzz target without libFuzzer: over each file of the folder that is named on the command
// line, and over mutations of it that a seed chooses. PELTON_SEEDS says how many, PELTON_SEED which
// one alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr uint64_t kSeeds = 200;        // of each file
constexpr uint64_t kMostSeeds = 20000;  // more of them are libFuzzer's work
constexpr size_t kMostChanges = 6;

std::map<std::string, std::string> corpus;  // bytes by the file's name

uint64_t NumberOf(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void RunTarget(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// One byte, one bit, a number that is on the edge of its type, or a part cut, doubled or put in.
void Change(std::mt19937_64& random, std::string& bytes) {
  const auto pick = [&](size_t count) { return count == 0 ? 0 : random() % count; };
  const size_t at = pick(bytes.size());
  const size_t count = pick(bytes.size() - at + 1);
  static constexpr uint64_t kEdges[] = {
      0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, ~uint64_t{0} >> 1};
  switch (pick(6)) {
    case 0:
      bytes.insert(at, 1, static_cast<char>(random()));
      break;
    case 1:
      if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << pick(8)));
      break;
    case 2: {
      const uint64_t edge = kEdges[pick(std::size(kEdges))];
      const size_t width = size_t{1} << pick(4);
      bytes.replace(at, width, reinterpret_cast<const char*>(&edge), width);
      break;
    }
    case 3:
      bytes.erase(at, count);
      break;
    case 4:
      bytes.insert(at, bytes.substr(at, count));
      break;
    case 5:
      bytes.resize(at);
      break;
  }
}

TEST(FuzzTargetTest, TakesEveryFileOfItsCorpus) {
  ASSERT_FALSE(corpus.empty()) << "tests/fuzz/make_corpus makes them";
  for (const auto& [name, bytes] : corpus) {
    std::fprintf(stderr, "%s\n", name.c_str());  // the last one before a crash is its cause
    RunTarget(bytes);
  }
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open)));
}

// After a first run, which may open what the target keeps.
TEST(FuzzTargetTest, LeavesNoDescriptorOpen) {
  for (const auto& [name, bytes] : corpus) RunTarget(bytes);
  const size_t before = OpenDescriptors();
  for (const auto& [name, bytes] : corpus) RunTarget(bytes);
  EXPECT_EQ(OpenDescriptors(), before);
}

std::string Mutated(std::string bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t changes = 1 + random() % kMostChanges; changes > 0; --changes) {
    Change(random, bytes);
  }
  return bytes;
}

TEST(FuzzTargetTest, TakesMutationsOfThem) {
  const char* const only = std::getenv("PELTON_SEED");
  const uint64_t first = only == nullptr ? 0 : NumberOf("PELTON_SEED", 0);
  const uint64_t count =
      only == nullptr
          ? std::min(NumberOf("PELTON_SEEDS", NumberOf("PELTON_MOST_SEEDS", kSeeds)), kMostSeeds)
          : 1;
  for (const auto& [name, bytes] : corpus) {
    for (uint64_t seed = first; seed < first + count; ++seed) {
      std::fprintf(stderr, "\r%s PELTON_SEED=%llu", name.c_str(),
                   static_cast<unsigned long long>(seed));
      RunTarget(Mutated(bytes, seed));
    }
    std::fprintf(stderr, "\n");
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  ::testing::InitGoogleTest(&argument_count, arguments);
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: %s CORPUS\n", arguments[0]);
    return 2;
  }
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return RUN_ALL_TESTS();
}
