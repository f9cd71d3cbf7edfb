"""What iterations report, on its way from the device to the host without anybody waiting for it.

The device writes every iteration's loss and squared error into a line of its own, and a fault where
a value is not finite (csrc/common/training_fault.h); from then on the optimiser does nothing, so
that the host may learn of it late and finds the scene as it was. Lines are copied a page at a time
into page-locked memory, behind the work that writes them, and read once they are there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gart.errors import GartError

CAMERA = "the gradient of the camera"
_VALUES = (
    "the loss",
    "the gradient of means",
    "the gradient of quats",
    "the gradient of log_scales",
    "the gradient of opacity_logits",
    "the gradient of sh",
    CAMERA,
)
"""What the bits of a fault stand for."""


@dataclass(frozen=True)
class Measured:
    """One iteration's numbers.

    Attributes:
        iteration: from 1.
        loss: photometric, without regularisation.
        psnr: of the training view, in dB.
        gaussians: their number after the iteration.
    """

    iteration: int
    loss: float
    psnr: float
    gaussians: int


class FaultError(GartError):
    """A value was not finite; the scene is as before `iteration`."""

    def __init__(self, iteration: int, values: str, view: str) -> None:
        super().__init__(
            f"{values} became NaN or infinite in iteration {iteration} (view {view}); earlier "
            "checkpoints are intact: lower the learning rates (--set lr_means=... or "
            "lr_scales=...) or check that photograph and its camera"
        )
        self.iteration = iteration


@dataclass(frozen=True)
class _Iteration:
    number: int
    view: str
    gaussians: int


@dataclass(frozen=True)
class _Page:
    iterations: list[_Iteration]
    numbers: Tensor
    fault: Tensor
    copied: torch.cuda.Event | None

    def arrived(self) -> bool:
        return self.copied is None or self.copied.query()


class Journal:
    """Numbers and faults of the iterations of one run.

    Args:
        device: where the iterations run.
        lines: iterations to a page; 1 where nothing runs ahead of the host.

    Attributes:
        fault: [2] int32 on the device: the first iteration with a value that is not finite, or 0,
            and which values.
    """

    def __init__(self, device: torch.device | str, lines: int = 1) -> None:
        self.fault = torch.zeros(2, dtype=torch.int32, device=device)
        self._numbers = torch.zeros(lines, 2, device=device)
        self._page: list[_Iteration] = []
        self._sent: deque[_Page] = deque()
        self._arrived: list[Measured] = []

    def line(self) -> Tensor:
        """Where the iteration under way writes its loss and mean squared error, [2] float32."""
        return self._numbers[len(self._page)]

    def check(self, iteration: int, value: str, tensors: Iterable[Tensor]) -> None:
        """Report a fault, as the device does, where `tensors` on the CPU are not finite; `value` is
        what they are, `CAMERA`.
        """
        if not all(bool(t.isfinite().all()) for t in tensors) and not int(self.fault[0]):
            self.fault.copy_(torch.tensor([iteration, 1 << _VALUES.index(value)]))

    def close(self, iteration: int, view: str, gaussians: int) -> None:
        """Note that the iteration has written its line, or will have."""
        self._page.append(_Iteration(iteration, view, gaussians))
        if len(self._page) == len(self._numbers):
            self._send()

    def read(self, wait: bool = False) -> None:
        """Take in the pages that have arrived; with `wait`, all there is to come.

        Raises:
            FaultError: an iteration had a value that is not finite.
        """
        if wait and self._page:
            self._send()
        while self._sent and (wait or self._sent[0].arrived()):
            page = self._sent.popleft()
            if page.copied is not None:
                page.copied.synchronize()
            self._take(page)

    def recount(self, gaussians: int) -> None:
        """Correct the number of Gaussians after the iteration that was read last."""
        self._arrived[-1] = replace(self._arrived[-1], gaussians=gaussians)

    def measured(self) -> list[Measured]:
        """The numbers of iterations that were read since the last call, in order."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def _send(self) -> None:
        event = None
        if self.fault.is_cuda:
            numbers, fault = (_page_locked(t) for t in (self._numbers, self.fault))
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.fault.device))
        else:
            numbers, fault = self._numbers.clone(), self.fault.clone()
        self._sent.append(_Page(self._page, numbers, fault, event))
        self._page = []

    def _take(self, page: _Page) -> None:
        faulty, values = page.fault.tolist()
        for iteration, (loss, error) in zip(page.iterations, page.numbers.tolist(), strict=False):
            if iteration.number == faulty:
                named = [name for bit, name in enumerate(_VALUES) if values >> bit & 1]
                raise FaultError(faulty, " and ".join(named), iteration.view)
            psnr = -10 * math.log10(max(error, 1e-10))
            self._arrived.append(Measured(iteration.number, loss, psnr, iteration.gaussians))


def _page_locked(source: Tensor) -> Tensor:
    """A copy in RAM that is complete once the GPU has come to it."""
    target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    return target.copy_(source, non_blocking=True)
