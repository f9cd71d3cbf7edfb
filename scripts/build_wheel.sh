#!/usr/bin/env bash
# Builds gart's wheel into a folder, replacing the one there: scripts/build_wheel.sh FOLDER
#
# GART_CUDA=ON adds the CUDA library (needs nvcc, no GPU), CUDAARCHS="80;90" names its architectures; without
# GART_CUDA it is added where nvcc and a GPU are. PYTHON names the interpreter whose pip does the work.
# `make wheel`, `make build-cuda` and the Dockerfile call this.
set -euo pipefail

if [[ $# -ne 1 ]]; then
  echo "usage: scripts/build_wheel.sh FOLDER" >&2
  exit 2
fi
folder=$1
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)

# Pinned in the isolated build environment too: headers of apache-tvm-ffi newer than the library that is loaded
# could call what it lacks.
export PIP_CONSTRAINT=$root/constraints.txt PIP_BUILD_CONSTRAINT=$root/constraints.txt

libraries=(libgart_cpu.so)
options=()
if [[ ${GART_CUDA:-} == ON ]]; then
  libraries+=(libgart_cuda.so)
  options=(-C "build-dir=$root/build/cuda") # apart, so that either build stays incremental
fi

rm -f "$folder"/gart3d-*.whl
"$python" -m pip wheel --no-deps -w "$folder" "${options[@]}" "$root"

contents=$("$python" -m zipfile -l "$folder"/gart3d-*.whl)
for library in "${libraries[@]}"; do
  if ! grep -q "gart/native/$library" <<<"$contents"; then
    echo "error: the wheel in $folder lacks gart/native/$library" >&2
    exit 1
  fi
done
