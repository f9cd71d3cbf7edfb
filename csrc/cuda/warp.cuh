// Threads of a warp.
#pragma once

namespace gart {
namespace cuda {

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

}  // namespace cuda
}  // namespace gart
