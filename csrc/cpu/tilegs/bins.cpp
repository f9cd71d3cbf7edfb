// Depth bins and their repair.
//
// Schedule: a parallel loop over tiles. (1) `bin`: the depth range from 64 sampled entries; entries
// are counted per bin, scanned and scattered within the tile, stably, so that a bin keeps the
// splats' order where the paper's atomics leave it open. (2) `repair`: every segment of two or more
// entries is sorted by depth and Gaussian. The paper repairs chosen segments within a budget of a
// quarter of the entries; on the CPU a segment has some ten entries, and sorting all of them costs
// less than choosing would be worth and makes the order exact. Cost: ~10 operations an entry for
// the bins, some n / 4 comparisons an entry in a segment of n.
#include <algorithm>
#include <atomic>

#include "common/depth_bins.h"
#include "cpu/parallel.h"
#include "cpu/tilegs/pipeline.h"

namespace gart::tilegs {
namespace {

// A sample that walks the list evenly: lists come in the Gaussians' order, which is often spatial.
DepthRange sampled_range(const Entry* entries, int64_t count, float near, int bins) {
  int32_t sample[kDepthSamples];
  const int n = static_cast<int>(std::min<int64_t>(count, kDepthSamples));
  for (int i = 0; i < n; ++i) sample[i] = log_depth(entry_depth(entries[count * i / n]), near);
  const int tail = depth_tail(n);
  std::nth_element(sample, sample + tail, sample + n);
  const int32_t low = sample[tail];
  std::nth_element(sample, sample + n - 1 - tail, sample + n);
  return depth_range(low, sample[n - 1 - tail], bins);
}

void sort_segment(Entry* first, Entry* last) {
  constexpr int64_t kInsertion = 32;
  if (last - first > kInsertion) {
    if (!std::is_sorted(first, last)) std::sort(first, last);
    return;
  }
  for (Entry* next = first + 1; next < last; ++next) {
    const Entry entry = *next;
    Entry* place = next;
    for (; place > first && place[-1] > entry; --place) *place = place[-1];
    *place = entry;
  }
}

}  // namespace

int64_t bin(const Grid& grid, const Settings& settings, Stream* stream) {
  const int bins = settings.bins;
  const float near = settings.splat.near;
  std::atomic<int64_t> segments{0};
  stream->bin_offset.resize(grid.tiles() * (bins + 1));
  parallel_blocks(grid.tiles(), 16, settings.threads, [&](int64_t t0, int64_t t1, int) {
    std::vector<Entry> unbinned;
    std::vector<uint8_t> bin_of;
    int64_t filled = 0;
    for (int64_t t = t0; t < t1; ++t) {
      uint32_t* offset = stream->bin_offset.data() + t * (bins + 1);
      std::fill(offset, offset + bins + 1, 0u);
      Entry* entries = stream->entries.data() + stream->tile_offset[t];
      const int64_t count = stream->tile_offset[t + 1] - stream->tile_offset[t];
      if (count == 0) continue;
      const DepthRange range = sampled_range(entries, count, near, bins);
      unbinned.assign(entries, entries + count);
      bin_of.resize(count);
      for (int64_t j = 0; j < count; ++j) {
        const int b = depth_bin(log_depth(entry_depth(unbinned[j]), near), range, bins);
        bin_of[j] = static_cast<uint8_t>(b);
        ++offset[b + 1];
      }
      uint32_t next[kMaxDepthBins];
      for (int b = 0; b < bins; ++b) {
        filled += offset[b + 1] > 0;
        next[b] = offset[b];
        offset[b + 1] += offset[b];
      }
      for (int64_t j = 0; j < count; ++j) entries[next[bin_of[j]]++] = unbinned[j];
    }
    segments += filled;
  });
  return segments;
}

RepairCounts repair(const Grid& grid, const Settings& settings, Stream* stream) {
  std::atomic<int64_t> segments{0}, entries{0};
  parallel_blocks(grid.tiles(), 16, settings.threads, [&](int64_t t0, int64_t t1, int) {
    RepairCounts counts;
    for (int64_t t = t0; t < t1; ++t) {
      const uint32_t* offset = stream->bin_offset.data() + t * (settings.bins + 1);
      Entry* tile = stream->entries.data() + stream->tile_offset[t];
      for (int b = 0; b < settings.bins; ++b) {
        if (offset[b + 1] - offset[b] < 2) continue;
        sort_segment(tile + offset[b], tile + offset[b + 1]);
        ++counts.segments;
        counts.entries += offset[b + 1] - offset[b];
      }
    }
    segments += counts.segments;
    entries += counts.entries;
  });
  return {segments, entries};
}

}  // namespace gart::tilegs
