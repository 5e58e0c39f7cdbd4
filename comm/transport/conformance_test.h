// The tests that every transport must pass. A transport brings a fixture that makes a world of it:
//
//   class ShmFixture : public TransportFixture {
//     std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override { ... }
//   };
//   INSTANTIATE_TEST_SUITE_P(Shm, TransportConformanceTest,
//                            testing::Values(&MakeTransportFixture<ShmFixture>));
//
// and links :conformance_test, which holds the cases.
#ifndef PELTON_COMM_TRANSPORT_CONFORMANCE_TEST_H_
#define PELTON_COMM_TRANSPORT_CONFORMANCE_TEST_H_

#include <memory>
#include <vector>

#include "comm/transport/transport.h"
#include "gtest/gtest.h"

namespace pelton {

// Threads: one. Owns: whatever the ranks of a world share; it outlives their transports.
class TransportFixture {
 public:
  virtual ~TransportFixture() = default;
  // The transports of a new world, by rank. Each is then used by a thread of its own. Called once.
  virtual std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) = 0;
};

using TransportFixtureFactory = std::unique_ptr<TransportFixture> (*)();

template <typename Fixture>
std::unique_ptr<TransportFixture> MakeTransportFixture() {
  return std::make_unique<Fixture>();
}

class TransportConformanceTest : public testing::TestWithParam<TransportFixtureFactory> {};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_CONFORMANCE_TEST_H_
