// The CUDA runtime that the device of the tests is made of: the stand-in, by its C interface.
#ifndef PELTON_TESTS_ACCELERATOR_RUNTIME_H_
#define PELTON_TESTS_ACCELERATOR_RUNTIME_H_

#include <cstddef>
#include <functional>

struct CUstream_st;
struct CUevent_st;

namespace pelton::accelerator {

using StreamHandle = CUstream_st*;
using EventHandle = CUevent_st*;

// Threads: any. Owns: nothing.
struct Runtime {
  // That of the library which PELTON_CUDART_LIBRARY names. Errors: throws c10::Error: none, or it
  // lacks a function.
  static const Runtime& Get();

  int (*get_device_count)(int* count);
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*device_synchronize)();
  int (*stream_create_with_flags)(StreamHandle* stream, unsigned flags);
  int (*stream_synchronize)(StreamHandle stream);
  int (*stream_query)(StreamHandle stream);
  int (*stream_wait_event)(StreamHandle stream, EventHandle event, unsigned flags);
  int (*launch_host_func)(StreamHandle stream, void (*function)(void*), void* argument);
  int (*event_create_with_flags)(EventHandle* event, unsigned flags);
  int (*event_destroy)(EventHandle event);
  int (*event_record)(EventHandle event, StreamHandle stream);
  int (*event_query)(EventHandle event);
  int (*event_synchronize)(EventHandle event);
  int (*allocate)(void** memory, size_t size_bytes);
  int (*release)(void* memory);

  // Puts `work` on the stream.
  void Push(StreamHandle stream, std::function<void()> work) const;
};

// Throws c10::Error for anything but success; `call` says what was called.
void Check(int result, const char* call);

}  // namespace pelton::accelerator

#endif  // PELTON_TESTS_ACCELERATOR_RUNTIME_H_
