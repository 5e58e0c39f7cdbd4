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

// What a transport says of itself where the wire under it cannot do all that the suite asks; the
// suite then holds it to what it does say. Threads: a value. Owns: nothing.
struct TransportPromises {
  // The collectives that it runs, natively or as programs; Launch refuses others by name.
  bool (*runs)(OperationKind kind) = [](OperationKind) { return true; };
  // The pairs that it reduces; Launch refuses others with InvalidArgument, naming both.
  bool (*reduces)(DType dtype, ReduceOp op) = [](DType, ReduceOp) { return true; };
  // Sums equal the reference in rank order (SUM-1b) and a NaN wins. Else the inputs are such that
  // every order gives the same bits.
  bool reduces_like_the_reference = true;
  // Matches sends and receives by tag. Else Launch refuses a tag that is not 0.
  bool has_tags = true;
  // Rank-order sums (SUM-1b). Else each rank gets the same bits (SUM-1a), right but for the
  // rounding.
  bool sums_in_rank_order = true;
  // Goes on after the ranks' operations differed. Else that ends the communicator, with a text that
  // names the field: on a rank whose part was done before, its next operation says so.
  bool survives_disagreement = true;
  // A send fails where its receive differs. Else a short one may be done before anybody knows.
  bool short_sends_learn_of_a_difference = true;
  // Neighbour operations match by tag and wait for nothing else (EDGE-1). Else both ends of an edge
  // launch what they have in common in the same order, and another order is an error.
  bool neighbors_match_by_tag = true;
  // Missing() names exactly the ranks that have not launched. Else at least one of them.
  bool names_exactly_who_is_missing = true;
};

// Threads: one. Owns: whatever the ranks of a world share; it outlives their transports.
class TransportFixture {
 public:
  virtual ~TransportFixture() = default;
  // The transports of a new world, by rank. Each is then used by a thread of its own. Called once.
  virtual std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) = 0;
  virtual TransportPromises promises() const { return {}; }
};

using TransportFixtureFactory = std::unique_ptr<TransportFixture> (*)();

template <typename Fixture>
std::unique_ptr<TransportFixture> MakeTransportFixture() {
  return std::make_unique<Fixture>();
}

class TransportConformanceTest : public testing::TestWithParam<TransportFixtureFactory> {};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_CONFORMANCE_TEST_H_
