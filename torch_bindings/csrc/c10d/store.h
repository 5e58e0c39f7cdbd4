// The job's key-value service as a store of torch.distributed.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_STORE_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/control/key_value.h"
#include "core/base/moving_deadline.h"

namespace pelton {
class Backend;
}

namespace pelton::torch_bindings {

// All ranks of the job see the same keys, which live at the coordinator until the job ends. A wait
// for a key that nobody may set any more, because a rank died or left, ends at once. Called without
// Python's lock. The time of a wait stands still while a rank is awaited. Threads: any. Owns:
// nothing; keeps the backend alive.
//
// Errors (thrown): DistStoreError: the timeout is over, names the keys; DistNetworkError: the
// coordinator or a rank is lost; else as comm/control/key_value.h.
class CoordinatorStore final : public ::c10d::Store {
 public:
  using Bytes = std::vector<uint8_t>;
  using Strings = std::vector<std::string>;
  using Milliseconds = std::chrono::milliseconds;

  CoordinatorStore(std::shared_ptr<Backend> backend, Milliseconds timeout);

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<CoordinatorStore>(backend_, timeout_);
  }

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const Bytes& value) override;
  // The value that the key has afterwards; `expected` if there is no such key and it is not empty.
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const Strings& keys) override;
  int64_t getNumKeys() override;
  void wait(const Strings& keys) override { wait(keys, timeout_); }
  void wait(const Strings& keys, const Milliseconds& timeout) override;

  bool hasExtendedApi() const override { return true; }
  void append(const std::string& key, const Bytes& value) override;
  std::vector<Bytes> multiGet(const Strings& keys) override;
  void multiSet(const Strings& keys, const std::vector<Bytes>& values) override;

 private:
  absl::Time Deadline() const;
  // Of a call that waits for keys.
  MovingDeadline DeadlineOfWait(Milliseconds timeout) const;
  Bytes Await(const std::string& key, const MovingDeadline& deadline);

  const std::shared_ptr<Backend> backend_;  // shared: PyTorch may hold a store for longer than us
  KeyValueStore keys_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_STORE_H_
