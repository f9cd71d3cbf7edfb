// Loads and stores by 32-bit shared-memory address. Indexing a __shared__ array inside a hot loop
// makes the compiler rebuild the array's base address each time (measured: a sixth of the ring
// kernel's instructions); an address held in a register does not.
#pragma once

#include <cstdint>

namespace gart {
namespace cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("" : "+r"(address));  // opaque: keep it, do not rebuild it
  return address;
}
__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ uint2 load_shared2(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ float4 load_shared4(uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
  return v;
}
__device__ __forceinline__ void store_shared2(uint32_t address, uint2 v) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" : : "r"(address), "r"(v.x), "r"(v.y));
}
__device__ __forceinline__ void store_shared4(uint32_t address, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
}

}  // namespace cuda
}  // namespace gart
