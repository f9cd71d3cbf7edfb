// A warp on the CPU, for code in csrc/cuda that keeps to warp-wide operations: its 32 lanes are
// fibers, and each such operation waits until all lanes have come to it.
//
// Include before the code. What that code uses beyond this does not compile.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#define __device__
#define __forceinline__ inline

struct {
  unsigned x;
} threadIdx;

namespace warp {

constexpr int kLanes = 32;
using Values = std::array<uint64_t, kLanes>;

// Contexts begin fibers; jumps switch between them, since contexts ask the kernel each time.
struct Lane {
  jmp_buf place;
  bool has_begun = false;
  std::vector<char> stack = std::vector<char>(1 << 17);
  bool is_done = true;
};

inline jmp_buf scheduler;
inline Lane lanes[kLanes];
inline std::function<void(int)> body;
inline Values given, complete;     // of the operation that lanes are coming to; of the last one
inline const char* met = nullptr;  // its name
inline int arrived = 0;
inline long operations = 0;

inline void enter(int lane) {
  body(lane);
  lanes[lane].is_done = true;
  _longjmp(scheduler, 1);
}

// To the lane, until it waits or ends.
inline void resume(int index) {
  Lane& lane = lanes[index];
  threadIdx.x = static_cast<unsigned>(index);
  if (_setjmp(scheduler) != 0) return;
  if (lane.has_begun) _longjmp(lane.place, 1);
  lane.has_begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = lane.stack.data();
  context.uc_stack.ss_size = lane.stack.size();
  context.uc_link = nullptr;
  makecontext(&context, reinterpret_cast<void (*)()>(enter), 1, index);
  setcontext(&context);
}

// All lanes' values, once all have come to the operation of this name.
inline Values meet(const char* name, uint64_t value) {
  const unsigned lane = threadIdx.x;
  const long operation = operations;
  if (arrived == 0) met = name;
  if (std::strcmp(met, name) != 0) {
    std::fprintf(stderr, "a lane is at %s, others at %s\n", name, met);
    std::abort();
  }
  given[lane] = value;
  if (++arrived == kLanes) {
    complete = given;
    arrived = 0;
    ++operations;
  }
  while (operations == operation) {
    if (_setjmp(lanes[lane].place) == 0) _longjmp(scheduler, 1);
  }
  return complete;
}

// Runs `work` in every lane. Throws if some lanes end while others wait for them.
inline void run(const std::function<void(int)>& work) {
  body = work;
  arrived = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes[lane].is_done = lanes[lane].has_begun = false;
  }
  // Between two operations lanes may run in any order.
  std::mt19937 random(0);
  std::array<int, kLanes> order;
  std::iota(order.begin(), order.end(), 0);
  int left = kLanes;
  while (left > 0) {
    std::shuffle(order.begin(), order.end(), random);
    const long before = operations;
    const int live = left;
    left = 0;
    for (const int lane : order) {
      if (lanes[lane].is_done) continue;
      resume(lane);
      left += !lanes[lane].is_done;
    }
    if (left == live && operations == before)
      throw std::runtime_error("lanes wait for one that does not come");
  }
}

}  // namespace warp

inline void __syncwarp() { warp::meet("__syncwarp", 0); }
inline unsigned __ballot_sync(unsigned, bool is_set) {
  const warp::Values all = warp::meet("__ballot_sync", is_set);
  unsigned bits = 0;
  for (int lane = 0; lane < warp::kLanes; ++lane) bits |= static_cast<unsigned>(all[lane]) << lane;
  return bits;
}
inline bool __any_sync(unsigned mask, bool is_set) { return __ballot_sync(mask, is_set) != 0; }
inline bool __all_sync(unsigned mask, bool is_set) { return __ballot_sync(mask, is_set) == ~0u; }
inline uint32_t __reduce_min_sync(unsigned, uint32_t value) {
  const warp::Values all = warp::meet("__reduce_min_sync", value);
  return static_cast<uint32_t>(*std::min_element(all.begin(), all.end()));
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  const warp::Values all = warp::meet("__reduce_max_sync", value);
  return static_cast<uint32_t>(*std::max_element(all.begin(), all.end()));
}
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const warp::Values all = warp::meet("__shfl_sync", bits);
  std::memcpy(&value, &all[from & (warp::kLanes - 1)], sizeof(T));
  return value;
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x) ^ bits);
}

using std::max;
using std::min;
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(unsigned bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline int32_t __float_as_int(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __int_as_float(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
