// Streams and events on the CPU: a stream is a thread that works through a queue.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STREAMS_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STREAMS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "core/base/sync.h"

namespace pelton::stand_in {

class SharedMemory;

// How often something has been marked, and how far the marks have been reached.
// Threads: any. Owns: its counts.
class Marks {
 public:
  virtual ~Marks() = default;
  virtual uint64_t Mark() = 0;
  virtual void Reach(uint64_t mark) = 0;
  virtual void WaitFor(uint64_t mark) = 0;
  virtual uint64_t last() = 0;
  virtual bool all_reached() = 0;
  // Where other processes see them; null: they do not.
  virtual const SharedMemory* memory() const { return nullptr; }
};

// Those of this process. Threads: any. Owns: its counts.
class OwnMarks final : public Marks {
 public:
  uint64_t Mark() override;
  void Reach(uint64_t mark) override;
  void WaitFor(uint64_t mark) override;
  uint64_t last() override;
  bool all_reached() override;

 private:
  Mutex mutex_;
  CondVar reached_;
  uint64_t marked_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace pelton::stand_in

// What the runtime's handles point to. Threads: any. Owns: its thread.
struct CUstream_st {
 public:
  CUstream_st();
  // Works through what is queued first, as the real one does in the background.
  ~CUstream_st();
  void Push(std::function<void()> work);
  void Synchronize() { work_->WaitFor(work_->last()); }
  // What was pushed and what is done.
  const std::shared_ptr<pelton::stand_in::Marks>& work() const { return work_; }

 private:
  void Run();
  void Linger();

  // Shared: who waits for all streams does so while they may be closed.
  const std::shared_ptr<pelton::stand_in::Marks> work_ =
      std::make_shared<pelton::stand_in::OwnMarks>();
  pelton::Mutex mutex_;
  pelton::CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::minstd_rand chance_;  // seeded by how many streams there were before; its thread's
  std::thread thread_;
};

// Threads: any. Owns: a share of its marks; what waits for them on a stream has another.
struct CUevent_st {
  std::shared_ptr<pelton::stand_in::Marks> marks = std::make_shared<pelton::stand_in::OwnMarks>();
};

namespace pelton::stand_in {

// The stream, or the default one for null.
CUstream_st& StreamOf(CUstream_st* stream);
// Waits for what is on the streams of the process, whatever their devices.
void SynchronizeAll();

}  // namespace pelton::stand_in

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STREAMS_H_
