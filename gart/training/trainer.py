"""The training loop's one step: a view, its rendering, the loss, gradients, Adam, densification."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from gart.cameras import has_ray
from gart.capture import Capture, View
from gart.errors import GartError, UsageError
from gart.memory import allocating
from gart.scene import Gaussians
from gart.stages import stage
from gart.tracing import TraceSettings, trace
from gart.training.checkpoint import State
from gart.training.config import TrainConfig
from gart.training.densification import add_noise, grow, relocate
from gart.training.filter3d import NEAREST, SamplingFilter, smooth
from gart.training.initialization import initial_gaussians, scene_extent
from gart.training.loss import as_float, photometric_loss
from gart.training.optimizer import Adam, learning_rates
from gart.training.plan import training_size
from gart.training.schedule import Schedule

USUAL_EXTENT = 5.0
"""Camera extent of the captures that 3DGS-MCMC was tuned on. Its noise and scale regularisation
depend on the unit of length; they are scaled as if the extent were this, so the unit is free."""
BACKGROUNDS = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}


class Trainer:
    """Trains one scene on one device, one view an iteration.

    Equal captures, settings and devices give equal runs: everything random comes from generators
    that are seeded with `config.seed` and saved with the state.

    Attributes:
        gaussians: the scene without the 3D filter; `export()` is the scene to render.
        iteration: iterations done.

    Raises:
        GartError: the capture has no training view.
    """

    def __init__(
        self, capture: Capture, config: TrainConfig, device: torch.device | str = "cpu"
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.schedule = Schedule.of(config)
        self.iteration = 0
        self._order: list[int] = []
        self._host_generator = torch.Generator().manual_seed(config.seed)
        self._generator = torch.Generator(self.device).manual_seed(config.seed + 1)

        self.gaussians = initial_gaussians(capture, config, self._host_generator).to(self.device)
        self._optimizer = Adam(self.gaussians, learning_rates(config, self.gaussians))
        with allocating(f"{len(capture.train)} photographs on {self.device}", "raise --downscale"):
            self._views = [_on_device(view, self.device) for view in capture.train]
        self._background = torch.tensor(
            BACKGROUNDS.get(config.background, capture.background), device=self.device
        )
        limit = None
        if config.memory_limit:
            limit = training_size(capture, config, device).for_tracing(config.memory_limit)
        self._settings = replace(
            TraceSettings(),
            sh=config.sh,
            backward=config.backward,
            lt_layout=config.lt_layout,
            memory_limit=limit,
        )
        cameras = [view.camera for view in capture.train]
        self.extent = scene_extent(cameras)
        self._unit = self.extent / USUAL_EXTENT
        self._filter = SamplingFilter(cameras, NEAREST * self.extent, self.device)
        self._sizes = self._filter_sizes()

    def step(self, densify: bool = False) -> dict[str, float]:
        """Run one iteration; returns `loss`, `psnr` (of the training view, in dB) and `gaussians`.

        `densify` ends it with a densification whatever the schedule says.

        Raises:
            GartError: the loss or a gradient is not finite. The scene is as before the step.
            OutOfMemoryError: what the step needs does not fit.
        """
        iteration = self.iteration + 1
        view = self._views[self._next_view()]
        background = self._background
        if self.config.background == "random":
            background = torch.rand(3, generator=self._generator, device=self.device)

        leaves = self.gaussians.map(lambda t: t.detach().requires_grad_())
        coefficients = (self.schedule.active_sh_degree(iteration) + 1) ** 2
        active = replace(leaves, sh=leaves.sh[:, :coefficients])
        with self._naming(f"the forward pass of view {view.name}"):
            image = trace(smooth(active, self._sizes), view.camera, self._settings).over(background)
        with stage("loss"), self._naming(f"the loss of view {view.name}"):
            target = as_float(view.image, background)
            loss = photometric_loss(image, target, self.config.ssim_weight, view.mask)
            total = loss + self._regularization(leaves)
            error = _squared_error(image.detach(), target, view.mask)
        tensors = leaves.tensors()
        with self._naming(f"the backward pass of view {view.name}"):
            gradients = torch.autograd.grad(total, list(tensors.values()))
        grads = dict(zip(tensors, gradients, strict=True))
        loss_value, mse = self._checked(iteration, view, loss.detach(), error, grads)

        with stage("optimiser"), self._naming("Adam"):
            means_lr = self.schedule.means_lr(iteration) * self.extent
            self._optimizer.lr["means"] = means_lr
            self._optimizer.step(self.gaussians, grads)
        with stage("densify"), self._naming("densification"):
            self._densify(iteration, means_lr, densify or self.schedule.densifies(iteration))
        self.iteration = iteration
        psnr = -10 * math.log10(max(mse, 1e-10))
        return {"loss": loss_value, "psnr": psnr, "gaussians": float(len(self.gaussians))}

    def export(self) -> Gaussians:
        """The scene with the 3D filter folded in: what files hold and renderers take."""
        with torch.no_grad():
            return smooth(self.gaussians, self._sizes)

    def state(self) -> State:
        """All that `load_state` needs for a run that goes on exactly."""
        optimizer = self._optimizer
        tensors = {
            **self.gaussians.tensors(),
            **{f"adam_m.{name}": t for name, t in optimizer.m.items()},
            **{f"adam_v.{name}": t for name, t in optimizer.v.items()},
            "filter_sizes": self._sizes,
            "generator": self._generator.get_state(),
            "host_generator": self._host_generator.get_state(),
        }
        values = {
            "iteration": self.iteration,
            "adam_steps": optimizer.steps,
            "view_order": list(self._order),
            "config": self.config.as_dict(),
            "photographs": self._photographs(),
        }
        # Copies in RAM: there may be no room for them on the GPU.
        copies = {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
        return State(copies, values)

    def load_state(self, state: State) -> None:
        """Go on from `state`, which must come from the same capture, settings and device kind.

        Raises:
            UsageError: the state belongs to other settings or photographs.
            GartError: it lacks something.
        """
        try:
            self._restore(state)
        except KeyError as error:
            raise GartError(
                f"the checkpoint lacks {error}; delete it to continue from the one before, or "
                "train anew with --overwrite"
            ) from error

    def _restore(self, state: State) -> None:
        self._require_same(state)
        tensors = {name: t.to(self.device) for name, t in state.tensors.items()}
        names = [f.name for f in fields(Gaussians)]
        self.gaussians = Gaussians(**{name: tensors[name] for name in names})
        self._optimizer.m = {name: tensors[f"adam_m.{name}"] for name in names}
        self._optimizer.v = {name: tensors[f"adam_v.{name}"] for name in names}
        self._optimizer.steps = int(state.values["adam_steps"])  # type: ignore[call-overload]
        self._sizes = tensors["filter_sizes"]
        self._generator.set_state(state.tensors["generator"])
        self._host_generator.set_state(state.tensors["host_generator"])
        self._order = list(state.values["view_order"])  # type: ignore[call-overload]
        self.iteration = int(state.values["iteration"])  # type: ignore[call-overload]

    def _naming(self, what: str) -> AbstractContextManager[None]:
        """Says what ran out of memory in the iteration under way, should it."""
        return allocating(
            f"{what} in iteration {self.iteration + 1}, with {len(self.gaussians):,} Gaussians,",
            "earlier checkpoints are intact: free memory and continue with --resume, or train anew "
            "with a lower --budget or a higher --downscale",
        )

    def _next_view(self) -> int:
        """Every view once in random order, then again in another."""
        if not self._order:
            order = torch.randperm(len(self._views), generator=self._host_generator)
            self._order = order.tolist()
        return self._order.pop()

    def _regularization(self, leaves: Gaussians) -> Tensor:
        """3DGS-MCMC's pull towards fewer and smaller Gaussians, which frees some to be moved."""
        opacity = leaves.opacity_logits.sigmoid().mean()
        scale = leaves.log_scales.exp().mean() / self._unit
        return self.config.opacity_reg * opacity + self.config.scale_reg * scale

    def _densify(self, iteration: int, means_lr: float, densifies: bool) -> None:
        config = self.config
        if densifies:
            relocate(self.gaussians, self._optimizer, config.dead_opacity, self._generator)
            target = self.schedule.target(len(self.gaussians), config.budget)
            added = target - len(self.gaussians)
            self.gaussians = grow(self.gaussians, self._optimizer, added, self._generator)
        add_noise(self.gaussians, config.noise * means_lr / self._unit**2, self._generator)
        if densifies or iteration % config.filter_every == 0:
            self._sizes = self._filter_sizes()

    def _filter_sizes(self) -> Tensor:
        intervals = self._filter.intervals(self.gaussians.means)
        return intervals * math.sqrt(self.config.filter_variance)

    def _checked(
        self, iteration: int, view: View, loss: Tensor, error: Tensor, grads: dict[str, Tensor]
    ) -> tuple[float, float]:
        """Loss and squared error as numbers; one copy to the host brings them and the checks."""
        finite = torch.stack([grad.isfinite().all() for grad in grads.values()])
        loss_value, mse, *flags = torch.cat([torch.stack([loss, error]), finite]).tolist()
        bad = [f"the gradient of {name}" for name, ok in zip(grads, flags, strict=True) if not ok]
        if not math.isfinite(loss_value):
            bad = ["the loss", *bad]
        if bad:
            raise GartError(
                f"{' and '.join(bad)} became NaN or infinite in iteration {iteration} "
                f"(view {view.name}); earlier checkpoints are intact: lower the learning rates "
                "(--set lr_means=... or lr_scales=...) or check that photograph and its camera"
            )
        return loss_value, mse

    def _photographs(self) -> list[int]:
        """Number and size in pixels of the training photographs."""
        return [len(self._views), sum(v.camera.width * v.camera.height for v in self._views)]

    def _require_same(self, state: State) -> None:
        """Only memory, and how often a run logs and saves, may change when it is continued."""
        free = {"log_every", "checkpoint_every", "checkpoint_keep", "memory_limit"}
        saved_config: Any = state.values["config"]
        # A setting younger than the checkpoint: its default is what was done before it came.
        before = {f.name: f.default for f in fields(TrainConfig)} | saved_config
        for key, value in self.config.as_dict().items():
            if key not in free and before[key] != value:
                raise UsageError(
                    f"the checkpoint was trained with {key}={before[key]}, now {key} is {value}; "
                    f"continue with {key}={before[key]}, or train anew with --overwrite"
                )
        saved: Any = state.values["photographs"]
        now = self._photographs()
        if saved != now:
            raise UsageError(
                f"the checkpoint was trained on {saved[0]} photographs of {saved[1]} pixels, "
                f"now there are {now[0]} of {now[1]}; give the same scene and --downscale, or "
                "train anew with --overwrite"
            )


def _on_device(view: View, device: torch.device) -> View:
    """The view on `device`, pixels that the lens has no ray for masked out."""
    mask, seen = view.mask, has_ray(view.camera.lens)
    if not seen.all():
        mask = seen if mask is None else seen & mask
    return replace(
        view, image=view.image.to(device), mask=None if mask is None else mask.to(device)
    )


def _squared_error(image: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    squares = (image.clamp(0, 1) - target).square()
    if mask is None:
        return squares.mean()
    return (squares * mask[..., None]).sum() / (3 * mask.sum()).clamp_min(1)
