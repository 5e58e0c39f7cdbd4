// The kernels that are linked into the program, on the GPU of this machine.
#include <cuda_runtime_api.h>

#include "algorithms/codec/cuda/piece_kernels_fixture.h"

namespace pelton::codec {
namespace {

int Allocate(void** memory, size_t size_bytes) { return cudaMalloc(memory, size_bytes); }
int Release(void* memory) { return cudaFree(memory); }
int Copy(void* target, const void* source, size_t size_bytes) {
  return cudaMemcpy(target, source, size_bytes, cudaMemcpyDefault);
}
int Synchronize() { return cudaStreamSynchronize(nullptr); }

}  // namespace

const PieceDevice& DeviceUnderTest() {
  static const PieceDevice device = {
      {pelton_kernels_version, pelton_encode_pieces, pelton_decode_pieces, pelton_merge_pieces},
      Allocate,
      Release,
      Copy,
      Synchronize};
  return device;
}

}  // namespace pelton::codec
