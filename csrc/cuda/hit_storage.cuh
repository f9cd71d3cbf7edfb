// Owns the tensors behind HitLists, and brings the counts of what a frame used back to the host
// without a wait.
#pragma once

#include <vector>

#include "cuda/tracer.cuh"

namespace gart {
namespace cuda {

class HitStorage {
 public:
  // Fresh storage with room for `chunks`; empty unless `keep`.
  HitStorage(const DeviceScope& scope, int64_t tiles, int64_t chunks, bool keep);
  // Storage that trace_forward returned.
  explicit HitStorage(const std::vector<Tensor>& tensors);

  HitLists view() const;
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Starts the copy of the counts to the host; returns a ticket for received_chunks.
  int64_t send_counts(cudaStream_t stream) const;
  // Hits of the frame and bytes of the chunks and tables they took; both wait.
  double total_hits() const;
  double bytes_used(int64_t tiles) const;

 private:
  std::vector<Tensor> tensors_;  // pool, table, warp_table, own_chunk, count, transmittance, used
};
constexpr int kStorageTensors = 7;

// What is in trace_forward's state: record, color, offset, list, bound and order, the storage, and
// the ticket [2] of its counts with the longest list.
constexpr int kListTensors = 6;
Records stored_records(const tvm::ffi::Array<Tensor>& state);
TileLists stored_lists(const tvm::ffi::Array<Tensor>& state);
HitStorage stored_hits(const tvm::ffi::Array<Tensor>& state);
const int64_t* stored_ticket(const tvm::ffi::Array<Tensor>& state);

// Chunks used by the frame behind `ticket`; waits for that frame only, and remembers it for
// expected_chunks.
int64_t received_chunks(int64_t ticket, const HitStorage& storage, int64_t tiles);
// How many chunks a frame of this many tiles should get: what recent frames used and a quarter
// more.
int64_t expected_chunks(int64_t tiles);
// Whether recent frames had so many pixels to redo that a larger ring pays.
bool wants_large_ring();

}  // namespace cuda
}  // namespace gart
