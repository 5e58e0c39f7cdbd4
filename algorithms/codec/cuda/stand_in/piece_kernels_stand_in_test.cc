// What only the stand-in does; the suite of piece_kernels.h holds the rest.
#include <cstdlib>
#include <string>
#include <vector>

#include "algorithms/codec/cuda/piece_kernels_fixture.h"
#include "core/memory/dtype.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

constexpr char kFault[] = "PELTON_STAND_IN_KERNEL_FAULT";
constexpr auto kFloat32 = static_cast<int32_t>(DType::kFloat32);
constexpr int kIllegalAddress = 700;

// What each function says to no elements, in the order of the interface.
std::vector<int> ResultsOfNoElements() {
  const PieceDevice& device = DeviceUnderTest();
  alignas(32) static std::byte memory[64];
  const PeltonMessages messages = {memory, 32, 1};
  const std::vector<int> results = {
      device.kernels.encode_pieces(memory, 0, kFloat32, memory, nullptr),
      device.kernels.decode_pieces(memory, 0, kFloat32, memory, nullptr),
      device.kernels.merge_pieces(&messages, 0, kFloat32, 1, memory + 32, nullptr),
  };
  EXPECT_EQ(device.synchronize(), 0);
  return results;
}

TEST(PieceKernelsStandInTest, TheFunctionThatIsNamedFails) {
  const std::vector<std::string> names = {"pelton_encode_pieces", "pelton_decode_pieces",
                                          "pelton_merge_pieces"};
  for (size_t i = 0; i < names.size(); ++i) {
    setenv(kFault, names[i].c_str(), 1);
    std::vector<int> expected(names.size());
    expected[i] = kIllegalAddress;
    EXPECT_EQ(ResultsOfNoElements(), expected) << names[i];
  }
  unsetenv(kFault);
  EXPECT_EQ(ResultsOfNoElements(), std::vector<int>(names.size()));
}

}  // namespace
}  // namespace pelton::codec
