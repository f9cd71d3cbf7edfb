// See hit_storage.cuh. No kernels but one sum over the pixel counts, for statistics.
#include "cuda/hit_storage.cuh"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace gart {
namespace cuda {
namespace {

// Counts on their way back: a ring of page-locked slots, each with an event. A slot overtaken by 64
// later frames is read from the device instead.
constexpr int kSlots = 64;
constexpr int kCounts = 3;  // as HitLists::used
struct Slot {
  unsigned long long* used = nullptr;
  cudaEvent_t event = nullptr;
  int64_t ticket = -1;
  int device = -1;
};
std::mutex slots_mutex;
Slot slots[kSlots];
int64_t next_ticket = 0;

// Chunks per tile that recent frames needed: follows growth at once, decays slowly.
std::atomic<double> chunks_per_tile{16.0};
std::atomic<bool> large_ring{false};

__global__ void sum_counts_kernel(const uint16_t* count, int64_t n, unsigned long long* total) {
  unsigned long long sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    sum += count[i];
  }
  atomicAdd(total, sum);
}

}  // namespace

HitStorage::HitStorage(const DeviceScope& scope, int64_t tiles, int64_t chunks, bool keep) {
  const int64_t t = keep ? tiles : 0;
  tensors_ = {scope.empty<int32_t>({chunks, kChunkWords}),
              scope.empty<int32_t>({chunks}),
              scope.empty<int32_t>({2 * t}),
              scope.empty<int32_t>({t * kTilePixels}),
              scope.empty<int32_t>({(t * kTilePixels + 1) / 2}),
              scope.empty<float>({t * kTilePixels}),
              scope.zeros<int64_t>({3})};
}

HitStorage::HitStorage(const std::vector<Tensor>& tensors) : tensors_(tensors) {}

HitLists HitStorage::view() const {
  const auto words = [&](int k) { return reinterpret_cast<uint32_t*>(data<int32_t>(tensors_[k])); };
  HitLists h;
  h.pool = words(0);
  h.table = words(1);
  h.warp_table = words(2);
  h.own_chunk = words(3);
  h.count = tensors_[5].numel() > 0 ? reinterpret_cast<uint16_t*>(words(4)) : nullptr;
  h.transmittance = data<float>(tensors_[5]);
  h.used = reinterpret_cast<unsigned long long*>(data<int64_t>(tensors_[6]));
  h.capacity = static_cast<uint32_t>(tensors_[0].size(0));
  return h;
}

int64_t HitStorage::send_counts(cudaStream_t stream) const {
  const std::lock_guard<std::mutex> lock(slots_mutex);
  const int64_t ticket = next_ticket++;
  Slot& slot = slots[ticket % kSlots];
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  if (slot.used == nullptr) {
    unsigned long long* all = nullptr;
    check_cuda(cudaHostAlloc(&all, kSlots * kCounts * sizeof(*all), cudaHostAllocPortable),
               "cudaHostAlloc");
    for (int s = 0; s < kSlots; ++s) slots[s].used = all + s * kCounts;
  }
  if (slot.event != nullptr && slot.device != device) {
    cudaEventDestroy(slot.event);
    slot.event = nullptr;
  }
  if (slot.event == nullptr) {
    check_cuda(cudaEventCreateWithFlags(&slot.event, cudaEventDisableTiming), "cudaEventCreate");
  }
  slot.device = device;
  slot.ticket = ticket;
  check_cuda(cudaMemcpyAsync(slot.used, tensors_[6].data_ptr(),
                             kCounts * sizeof(unsigned long long), cudaMemcpyDeviceToHost, stream),
             "cudaMemcpyAsync");
  check_cuda(cudaEventRecord(slot.event, stream), "cudaEventRecord");
  return ticket;
}

Records stored_records(const tvm::ffi::Array<Tensor>& state) {
  return {reinterpret_cast<float4*>(data<float>(state[0])),
          reinterpret_cast<float4*>(data<float>(state[1]))};
}

TileLists stored_lists(const tvm::ffi::Array<Tensor>& state) {
  return {data<int64_t>(state[2]), reinterpret_cast<uint32_t*>(data<int32_t>(state[3])),
          data<float>(state[4]), data<int32_t>(state[5])};
}

HitStorage stored_hits(const tvm::ffi::Array<Tensor>& state) {
  std::vector<Tensor> kept;
  for (int k = 0; k < kStorageTensors; ++k) kept.push_back(state[kListTensors + k]);
  return HitStorage(kept);
}

const int64_t* stored_ticket(const tvm::ffi::Array<Tensor>& state) {
  return data<int64_t>(state[kListTensors + kStorageTensors]);
}

int64_t received_chunks(int64_t ticket, const HitStorage& storage, int64_t tiles) {
  unsigned long long used[kCounts];
  bool found = false;
  {
    const std::lock_guard<std::mutex> lock(slots_mutex);
    const Slot& slot = slots[ticket % kSlots];
    if (slot.ticket == ticket) {
      check_cuda(cudaEventSynchronize(slot.event), "ring_kernel");
      std::copy(slot.used, slot.used + kCounts, used);
      found = true;
    }
  }
  if (!found) {
    check_cuda(
        cudaMemcpy(used, storage.tensors()[6].data_ptr(), sizeof(used), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  }
  const int64_t chunks = static_cast<int64_t>(std::max(used[0], used[1]));
  const double per_tile =
      static_cast<double>(chunks) / static_cast<double>(std::max<int64_t>(tiles, 1));
  chunks_per_tile = std::max(per_tile, 0.98 * chunks_per_tile + 0.02 * per_tile);
  // Redone pixels cost about as much as a hundred others: the larger ring pays above 2 %.
  const double redone = static_cast<double>(used[2]) / (static_cast<double>(tiles) * kTilePixels);
  if (redone > 0.02) large_ring = true;
  if (redone < 0.0005) large_ring = false;
  return chunks;
}

bool wants_large_ring() { return large_ring; }

int64_t expected_chunks(int64_t tiles) {
  return std::min<int64_t>(static_cast<int64_t>(1.25 * chunks_per_tile * tiles) + 1024,
                           static_cast<int64_t>(kShared / kChunkRows - 1));
}

double HitStorage::bytes_used(int64_t tiles) const {
  unsigned long long used[kCounts];
  check_cuda(cudaMemcpy(used, tensors_[6].data_ptr(), sizeof(used), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  // Chunks and their table; per pixel a count, a transmittance and an own chunk; per warp its
  // table's place.
  return 4.0 * (static_cast<double>(used[0]) * kChunkWords + static_cast<double>(used[1])) +
         static_cast<double>(tiles) * (kTilePixels * 10.0 + 8.0);
}

double HitStorage::total_hits() const {
  const HitLists h = view();
  unsigned long long* total = nullptr;
  unsigned long long value = 0;
  check_cuda(cudaMalloc(&total, sizeof(*total)), "cudaMalloc");
  check_cuda(cudaMemset(total, 0, sizeof(*total)), "cudaMemset");
  sum_counts_kernel<<<256, 256>>>(h.count, tensors_[5].numel(), total);
  check_launch("sum_counts_kernel");
  check_cuda(cudaMemcpy(&value, total, sizeof(value), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check_cuda(cudaFree(total), "cudaFree");
  return static_cast<double>(value);
}

}  // namespace cuda
}  // namespace gart
