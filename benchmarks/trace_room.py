"""Times the CUDA tracer on the cameras of a room, as kernel sums and as wall time from Python.

    python benchmarks/trace_room.py ROOM.npz...

ROOM.npz holds means, quats, scales, opacities, sh, viewmats, Ks, width, height. Reported are means
over its cameras: wall time (median of 20 calls, CUDA events), the sum of the kernels
(torch.profiler), the kernels that take longest, and the counts of one frame.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from gart.cameras import Camera
from gart.scene import Gaussians
from gart.stages import Stages
from gart.tracing import BACKWARD_MODES, SH_MODES, TraceSettings, trace


def load(path: str) -> tuple[Gaussians, list[Camera]]:
    """The room's Gaussians on the GPU, and its cameras."""
    data = np.load(path)

    def tensor(name: str) -> torch.Tensor:
        return torch.tensor(data[name].astype(np.float32))

    scene = Gaussians(
        means=tensor("means"),
        quats=tensor("quats"),
        log_scales=tensor("scales").log(),
        opacity_logits=tensor("opacities").double().logit().float(),
        sh=tensor("sh"),
    )
    width, height = int(data["width"]), int(data["height"])
    cameras = []
    for viewmat, k in zip(data["viewmats"], data["Ks"], strict=True):
        c2w = torch.tensor(np.linalg.inv(viewmat.astype(np.float64))[:3], dtype=torch.float32)
        intrinsics = (float(k[0, 0]), float(k[1, 1]), float(k[0, 2]), float(k[1, 2]))
        cameras.append(Camera(c2w, *intrinsics, width, height))
    return scene.to("cuda"), cameras


def wall(run: Callable[[], object], repeats: int = 20) -> float:
    """Median milliseconds of one call."""
    times = []
    for i in range(repeats + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(end))
    return float(np.median(times))


def kernels(run: Callable[[], object], calls: int) -> tuple[float, str]:
    """Milliseconds of all kernels of one call, and the longest of them by name."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = {}
    for event in profiler.key_averages():
        name = re.sub(r"<.*|\(.*", "", event.key.replace("(anonymous namespace)::", ""))
        name = name.split("::")[-1].split(" ")[-1]
        ms = event.self_device_time_total / calls / 1000
        events[name] = events.get(name, 0.0) + ms
    longest = sorted(events.items(), key=lambda item: -item[1])[:8]
    return sum(events.values()), ", ".join(f"{name} {ms:.3f}" for name, ms in longest)


def measure(scene: Gaussians, cameras: list[Camera], settings: TraceSettings) -> None:
    """Print one table row for the room and settings."""
    leaves = scene.map(lambda t: t.clone().requires_grad_())
    gradient = torch.randn(cameras[0].height, cameras[0].width, 3, device="cuda")
    rounds = 5

    def forward(camera: Camera) -> torch.Tensor:
        return trace(leaves, camera, settings).color

    def backward(image: torch.Tensor) -> None:
        for tensor in leaves.tensors().values():
            tensor.grad = None
        image.backward(gradient, retain_graph=True)

    calls = rounds * len(cameras)
    forward_wall = np.mean([wall(lambda c=c: forward(c)) for c in cameras])
    forward_sum, forward_kernels = kernels(
        lambda: [forward(c) for _ in range(rounds) for c in cameras], calls
    )
    images = [forward(c) for c in cameras]
    backward_wall = np.mean([wall(lambda i=i: backward(i)) for i in images])
    backward_sum, backward_kernels = kernels(
        lambda: [backward(i) for _ in range(rounds) for i in images], calls
    )
    print(
        f"sh={settings.sh} {settings.backward}: kernels forward {forward_sum:.3f} backward "
        f"{backward_sum:.3f} | wall forward {forward_wall:.3f} backward {backward_wall:.3f}\n"
        f"  forward: {forward_kernels}\n  backward: {backward_kernels}",
        flush=True,
    )


def main() -> None:
    """Measure every room named on the command line."""
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}")
    for path in sys.argv[1:]:
        scene, cameras = load(path)
        with Stages() as stages:
            for camera in cameras:
                trace(scene.map(lambda t: t.requires_grad_()), camera)
        counts = {name: int(np.mean(values)) for name, values in stages.counts.items()}
        print(f"{path}: {counts}")
        scene = scene.detach()
        for sh in SH_MODES:
            for mode in BACKWARD_MODES:
                measure(scene, cameras, TraceSettings(sh=sh, backward=mode))


if __name__ == "__main__":
    main()
