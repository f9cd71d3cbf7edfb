// A parallel loop over independent items. Threads take items in blocks from a shared counter;
// results must not depend on which thread takes which item.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace gart {

// Calls fn(begin, end, thread) over [0, count) in blocks of at most `block`; rethrows the first
// exception.
template <typename Fn>
void parallel_blocks(int64_t count, int64_t block, int threads, const Fn& fn) {
  const int64_t blocks = (count + block - 1) / block;
  const int workers = static_cast<int>(std::min<int64_t>(std::max(threads, 1), blocks));
  if (workers <= 1) {
    if (count > 0) fn(int64_t{0}, count, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&](int thread) {
    try {
      for (int64_t b = next++; b < blocks; b = next++)
        fn(b * block, std::min(count, (b + 1) * block), thread);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex);
      if (!error) error = std::current_exception();
      next = blocks;
    }
  };
  std::vector<std::thread> pool;
  for (int t = 1; t < workers; ++t) pool.emplace_back(work, t);
  work(0);
  for (std::thread& t : pool) t.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace gart
