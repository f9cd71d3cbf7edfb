// The rendering model's constants by name; both libraries export them as `constants`.
#pragma once

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include "common/constants.h"

namespace gart {

inline tvm::ffi::Map<tvm::ffi::String, double> constants() {
  return {
      {"alpha_min", kAlphaMin},
      {"alpha_max_trace", kAlphaMaxTrace},
      {"alpha_max_tilegs", kAlphaMaxTileGS},
      {"transmittance_min", kTransmittanceMin},
      {"near", kNear},
      {"eps2d", kEps2d},
      {"trace_tile", kTraceTile},
      {"block_tiles", kBlockTiles},
      {"ring_size", kRingSize},
      {"max_ring", kMaxRing},
  };
}

}  // namespace gart
