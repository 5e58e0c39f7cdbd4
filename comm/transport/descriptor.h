// A file descriptor that closes itself.
#ifndef PELTON_COMM_TRANSPORT_DESCRIPTOR_H_
#define PELTON_COMM_TRANSPORT_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace pelton {

// Threads: one at a time. Owns: the descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_DESCRIPTOR_H_
