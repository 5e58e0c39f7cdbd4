// One operation that all ranks take part in, with its inputs and the result that it must give.
#ifndef PELTON_COMM_TRANSPORT_CONFORMANCE_EXCHANGE_H_
#define PELTON_COMM_TRANSPORT_CONFORMANCE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/pipeline/operation.h"

namespace pelton::conformance {

// Where the ranks' tensors lie. kMixed: in a region on even ranks, in private memory on odd ones.
enum class Placement { kRegion, kPrivate, kMixed };

// A kSend stands for a shift around the ring: every rank sends to the one `step` further and
// receives from the one `step` before. Threads: a value. Owns: nothing.
struct ExchangeSpec {
  OperationKind kind = OperationKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;
  int32_t step = 1;
  int32_t tag = 0;
  uint64_t count = 1;
  bool in_place = false;
  Placement placement = Placement::kRegion;
  uint64_t offset_count = 0;  // elements by which the tensors miss an aligned address
  uint64_t seed = 0;          // of the inputs
  bool any_order = false;     // reductions of the inputs give the same bits in any order
};

std::string Describe(const ExchangeSpec& spec);

// Threads: immutable once made. Owns: inputs and expected results.
struct Exchange {
  ExchangeSpec spec;
  WorldSize world_size;
  std::vector<std::vector<std::byte>> inputs;    // by rank; a broadcast's lie in the target
  std::vector<std::vector<std::byte>> expected;  // by rank; empty where there is no target
};

// Inputs from the seed (NaN, infinity and -0 among them) and, by the reference reduction, results.
Exchange MakeExchange(const ExchangeSpec& spec, WorldSize world_size);

// "" if the elements are bitwise equal (one NaN equals another), else the first that is not.
std::string DifferenceOfElements(DType dtype, const std::vector<std::byte>& expected,
                                 const std::byte* actual);

// Every kind with which data moves, and every pair of dtype and op that reduces.
const std::vector<OperationKind>& DataKinds();
bool IsReduction(OperationKind kind);
std::vector<ReduceOp> OpsOf(DType dtype);
// Whether the kind can have its target inside of its source or the other way round.
bool HasInPlaceForm(OperationKind kind);

}  // namespace pelton::conformance

#endif  // PELTON_COMM_TRANSPORT_CONFORMANCE_EXCHANGE_H_
