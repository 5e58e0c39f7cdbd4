#include "core/pipeline/standard_stages.h"

#include <cstring>
#include <vector>

#include "core/base/status.h"
#include "core/pipeline/operation_batch.h"

namespace pelton {
namespace {

// On a device the flags are runs of one byte, which in every dtype makes a number that is not zero:
// who reads them asks no more (1.0 would need a copy from the host).
constexpr uint8_t kUsedByte = 0x3C;

absl::Status FillOnDevice(const BucketRun& run, std::byte* tail) {
  DeviceQueue& device = *run.device();
  const size_t element_bytes = SizeOf(run.layout().dtype);
  const std::vector<SlotId>& slots = run.layout().slots;
  RETURN_IF_ERROR(device.Fill(tail, kUsedByte, slots.size() * element_bytes));
  for (size_t i = 0; i < slots.size(); ++i) {
    if (run.UsedHere(slots[i])) continue;
    RETURN_IF_ERROR(device.Fill(tail + i * element_bytes, 0, element_bytes));
  }
  return absl::OkStatus();
}

template <typename T>
void Fill(const BucketRun& run, std::byte* tail, T one) {
  for (SlotId slot : run.layout().slots) {
    const T value = run.UsedHere(slot) ? one : T{0};
    std::memcpy(tail, &value, sizeof(T));
    tail += sizeof(T);
  }
}

// Threads: as Stage. Owns: nothing.
class UsedTailStage final : public Stage {
 public:
  absl::string_view name() const override { return "used tail"; }
  StageKind kind() const override { return StageKind::kPrepare; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun& run, StageState*) override {
    std::byte* const tail = run.storage().TailOf(run.layout().id);
    if (tail == nullptr) return absl::OkStatus();
    if (run.device() != nullptr) return FillOnDevice(run, tail);
    switch (run.layout().dtype) {
      case DType::kFloat32:
        Fill<float>(run, tail, 1);
        break;
      case DType::kFloat64:
        Fill<double>(run, tail, 1);
        break;
      case DType::kFloat16:
        Fill<uint16_t>(run, tail, 0x3C00);  // 1.0
        break;
      case DType::kBFloat16:
        Fill<uint16_t>(run, tail, 0x3F80);  // 1.0
        break;
      case DType::kUInt8:
      case DType::kInt8:
        Fill<uint8_t>(run, tail, 1);
        break;
      case DType::kInt16:
        Fill<uint16_t>(run, tail, 1);
        break;
      case DType::kInt32:
        Fill<uint32_t>(run, tail, 1);
        break;
      case DType::kInt64:
        Fill<uint64_t>(run, tail, 1);
        break;
      default:
        return absl::InternalError("a used tail of a dtype that cannot carry one");
    }
    return absl::OkStatus();
  }
};

// Threads: as Stage. Owns: the operations of the round.
class AllReduceStage final : public Stage {
 public:
  explicit AllReduceStage(ReduceOp op) : op_(op) {}
  absl::string_view name() const override { return "allreduce"; }
  StageKind kind() const override { return StageKind::kExchange; }
  bool takes_device_memory() const override { return true; }

  absl::Status Start(BucketRun& run, StageState*) override {
    batch_.Clear();
    for (const Segment& segment : run.segments()) {
      Operation operation;
      operation.kind = OperationKind::kAllReduce;
      operation.dtype = run.layout().dtype;
      operation.reduce_op = op_;
      operation.count = segment.count;
      operation.set_source(segment.location);
      operation.set_target(segment.location);
      batch_.Add(operation);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override { return batch_.Advance(run); }
  bool has_launched_all() const override { return batch_.has_launched_all(); }

 private:
  const ReduceOp op_;
  OperationBatch batch_;
};

}  // namespace

std::unique_ptr<Stage> MakeUsedTailStage() { return std::make_unique<UsedTailStage>(); }

std::unique_ptr<Stage> MakeAllReduceStage(ReduceOp op) {
  return std::make_unique<AllReduceStage>(op);
}

}  // namespace pelton
