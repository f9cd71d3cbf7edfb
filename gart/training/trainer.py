"""The training loop's one step: a view, its rendering, the loss, gradients, Adam, densification."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import fields, replace

import torch
from torch import Tensor

from gart.cameras import Camera
from gart.capture import Capture
from gart.errors import GartError
from gart.memory import allocating
from gart.scene import Gaussians
from gart.stages import stage
from gart.tracing import TraceSettings, trace_rays
from gart.tracing.tracer import Differentiated, by_autograd, differentiate
from gart.training.averaging import Average
from gart.training.checkpoint import State, require_same
from gart.training.config import TrainConfig
from gart.training.exposure import Exposures
from gart.training.filter3d import NEAREST, SamplingFilter, smooth, smooth_backward
from gart.training.initialization import initial_gaussians, scene_extent
from gart.training.journal import CAMERA, FaultError, Journal, Measured
from gart.training.loss import photometric_loss
from gart.training.morton import morton_order
from gart.training.optimizer import Adam, Noise, learning_rates
from gart.training.photographs import Photograph
from gart.training.plan import training_size
from gart.training.poses import RefinedCameras
from gart.training.schedule import Schedule
from gart.training.strategies import Observation, make_strategy

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
        self._optimizer = Adam(self.gaussians, learning_rates(config))
        self._average = Average()
        self._journal = self._new_journal()
        with allocating(f"{len(capture.train)} photographs on {self.device}", "raise --downscale"):
            self._views = [Photograph.of(view, self.device) for view in capture.train]
            self._halves = [v.halved() for v in self._views] if self.schedule.coarse_until else []
        self._background = torch.tensor(
            BACKGROUNDS.get(config.background, capture.background), device=self.device
        )
        # Over black no gradient goes through opacity.
        self._through_opacity = config.background == "random" or bool(self._background.any())
        limit = None
        if config.memory_limit:
            limit = training_size(capture, config, device).for_tracing(config.memory_limit)
        self._settings = replace(
            TraceSettings(),
            transmittance_min=config.transmittance_min,
            sh=config.sh,
            backward=config.backward,
            lt_layout=config.lt_layout,
            memory_limit=limit,
            tracer=config.tracer,
        )
        cameras = [view.camera for view in capture.train]
        self.extent = scene_extent(cameras)
        self._unit = self.extent / USUAL_EXTENT
        self._filter = self._sampled_by(self._views_of(1))
        self._sizes = self._filter_sizes(self.gaussians)
        self._exposures = Exposures(len(self._views), self.device) if config.exposure else None
        self._held_out = {view.name: view.camera for view in capture.test}
        self._refined: RefinedCameras | None = None
        if config.refines:
            poses, lenses = config.refine_poses, config.refine_intrinsics
            self._refined = RefinedCameras(
                cameras, self.extent, poses=poses, lenses=lenses, device=self.device
            )
        self._strategy = make_strategy(
            config,
            self.schedule,
            self.gaussians,
            extent=self.extent,
            views=len(self._views),
            settings=self._settings,
        )

    def step(self, densify: bool = False) -> dict[str, float]:
        """Run one iteration; returns `loss`, `psnr` (of the training view, in dB) and `gaussians`.

        `densify` ends it with a densification whatever the schedule says. On a GPU this waits for
        the iteration's end, which `advance` does not.

        Raises:
            GartError: the loss or a gradient is not finite. The scene is as before the step.
            OutOfMemoryError: what the step needs does not fit.
        """
        self.advance(densify)
        last = self.measured(wait=True)[-1]
        return {"loss": last.loss, "psnr": last.psnr, "gaussians": float(last.gaussians)}

    def advance(self, densify: bool = False) -> None:
        """Run one iteration without waiting for its numbers: see `measured`.

        Raises:
            GartError: as `step`, of this iteration or, on a GPU, an earlier one. The scene is as
                before the iteration that it names.
            OutOfMemoryError: as `step`.
        """
        iteration = self.iteration + 1
        number = self._next_view()
        view, exposures = self._views_of(iteration)[number], self._exposures
        refined = self._refined if self.schedule.refines(iteration) else None
        scene, journal = self.gaussians, self._journal
        background = self._background
        if self.config.background == "random":
            background = torch.rand(3, generator=self._generator, device=self.device)

        with self._naming(f"the forward pass of view {view.name}"):
            traced = self._traced_scene(iteration)
            if refined:
                image = self._through_refined(refined, number, traced)
                # Strategies see the lens that the capture gives, whose ray grid is at hand.
                view = replace(view, camera=refined.posed(number))
            else:
                image = differentiate(traced, view.camera, self._settings)
        with stage("loss"), self._naming(f"the loss of view {view.name}"):
            rendering = image.rendering
            seen = exposures.apply(number, rendering) if exposures else rendering
            by_color, by_opacity = photometric_loss(
                seen,
                view,
                background,
                self.config.ssim_weight,
                journal,
                iteration,
                through_opacity=self._through_opacity,
            )
            if exposures:
                by_color, by_opacity, by_exposure = exposures.backward(
                    number, rendering, by_color, by_opacity
                )
        with self._naming(f"the backward pass of view {view.name}"):
            grads, by_camera = image.backward(by_color, by_opacity)
            hits = image.hits if self._strategy.wants_hits(iteration) else None
            del image, rendering, by_color, by_opacity
        with stage("strategy"), self._naming("scoring"):
            self._strategy.observe(
                Observation(iteration, view, seen, background, traced, grads, hits)
            )
            del seen, traced, hits

        with stage("optimiser"), self._naming("Adam"):
            if refined:
                journal.check(iteration, CAMERA, by_camera)
            smooth_backward(
                scene,
                self._sizes,
                grads,
                journal.fault,
                iteration,
                opacity_reg=self.config.opacity_reg,
                scale_reg=self.config.scale_reg / self._unit,
            )
            means_lr = self.schedule.means_lr(iteration) * self.extent
            self._optimizer.lr["means"] = means_lr
            amount = self.config.noise * means_lr / self._unit**2
            noise = Noise(amount, self.config.seed, iteration)
            self._optimizer.step(scene, grads, journal.fault, noise)
            if exposures:
                rate = self.schedule.exposure_lr(iteration)
                exposures.step(number, by_exposure, rate, journal.fault)
            if refined and not int(journal.fault[0]):
                refined.step(number, by_camera, self._camera_rates(iteration))
                if not self.schedule.refines(iteration + 1):
                    self._keep_cameras(refined)
        densifies = densify or self.schedule.densifies(iteration)
        journal.close(iteration, view.name, len(scene))
        self._read(wait=densifies)  # a scene with a fault stays as it is
        with stage("densify"), self._naming("densification"):
            if densifies:
                self.gaussians = self._strategy.densify(
                    scene, self._optimizer, iteration, self._generator
                )
                journal.recount(len(self.gaussians))
                self._average.restart()
            sorts = self.config.morton_every and iteration % self.config.morton_every == 0
            if sorts:
                self._sort()
            sharpens = iteration == self.schedule.coarse_until
            if sharpens:
                self._filter = self._sampled_by(self._views)
            due = iteration % self.config.filter_every == 0
            if densifies or sorts or sharpens or due:
                self._sizes = self._filter_sizes(self.gaussians)
        if self.schedule.averages(iteration):
            with self._naming("the mean of the last scenes"):
                self._average.add(self.gaussians)
        self.iteration = iteration

    def measured(self, wait: bool = False) -> list[Measured]:
        """Numbers of iterations that have come in since the last call, in order; with `wait`, of
        all that were run. On a GPU they come `log_every` at a time.

        Raises:
            GartError: as `advance`.
        """
        self._read(wait)
        return self._journal.measured()

    def export(self) -> Gaussians:
        """The scene with the 3D filter folded in: what files hold and renderers take. It is the
        mean of the last scenes where there is one (`average_from`).
        """
        if not self._average.count:
            return smooth(self.gaussians, self._sizes)
        scene = self._average.scene()
        return smooth(scene, self._filter_sizes(scene))

    def refined_cameras(self) -> dict[str, Camera]:
        """Corrected cameras by name, those of held-out views with their own poses; none where
        nothing is refined.
        """
        if self._refined is None:
            return {}
        held_out = {n: self._refined.with_lens(camera) for n, camera in self._held_out.items()}
        trained = {view.name: self._refined.camera(i) for i, view in enumerate(self._views)}
        return held_out | trained

    def state(self) -> State:
        """All that `load_state` needs for a run that goes on exactly.

        Raises:
            GartError: as `advance`.
        """
        self._read(wait=True)
        optimizer = self._optimizer
        tensors = {
            **self.gaussians.tensors(),
            **{f"adam_m.{name}": t for name, t in optimizer.m.items()},
            **{f"adam_v.{name}": t for name, t in optimizer.v.items()},
            **{f"strategy.{name}": t for name, t in self._strategy.tensors.items()},
            **{f"exposure.{name}": t for name, t in self._exposed().items()},
            **{f"camera.{name}": t for name, t in self._corrected().items()},
            **{f"average.{name}": t for name, t in self._average.tensors.items()},
            "filter_sizes": self._sizes,
            "generator": self._generator.get_state(),
            "host_generator": self._host_generator.get_state(),
        }
        values = {
            "iteration": self.iteration,
            "adam_steps": optimizer.steps,
            "averaged": self._average.count,
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
        require_same(state, self.config, self._photographs())
        tensors = {name: t.to(self.device) for name, t in state.tensors.items()}
        names = [f.name for f in fields(Gaussians)]
        self.gaussians = Gaussians(**{name: tensors[name] for name in names})
        self._optimizer.m = {name: tensors[f"adam_m.{name}"] for name in names}
        self._optimizer.v = {name: tensors[f"adam_v.{name}"] for name in names}
        self._optimizer.steps = int(state.values["adam_steps"])  # type: ignore[call-overload]
        watched = self._strategy.tensors
        self._strategy.tensors = {name: tensors[f"strategy.{name}"] for name in watched}
        for name, tensor in self._exposed().items():
            tensor.copy_(tensors[f"exposure.{name}"])
        for name, tensor in self._corrected().items():
            tensor.copy_(state.tensors[f"camera.{name}"])
        self._average.restart()
        self._average.count = int(state.values.get("averaged", 0))  # type: ignore[call-overload]
        if self._average.count:
            self._average.tensors = {name: tensors[f"average.{name}"] for name in names}
        self._sizes = tensors["filter_sizes"]
        self._generator.set_state(state.tensors["generator"])
        self._host_generator.set_state(state.tensors["host_generator"])
        self._order = list(state.values["view_order"])  # type: ignore[call-overload]
        self.iteration = int(state.values["iteration"])  # type: ignore[call-overload]
        self._filter = self._sampled_by(self._views_of(self.iteration + 1))
        if self._refined and self.iteration + 1 >= self.schedule.refine_until:
            self._keep_cameras(self._refined)
        self._journal = self._new_journal()

    def _naming(self, what: str) -> AbstractContextManager[None]:
        """Says what ran out of memory in the iteration under way, should it."""
        return allocating(
            f"{what} in iteration {self.iteration + 1}, with {len(self.gaussians):,} Gaussians,",
            "earlier checkpoints are intact: free memory and continue with --resume, or train anew "
            "with a lower --budget or a higher --downscale",
        )

    def _views_of(self, iteration: int) -> list[Photograph]:
        return self._halves if iteration <= self.schedule.coarse_until else self._views

    def _next_view(self) -> int:
        """Every view once in random order, then again in another."""
        if not self._order:
            order = torch.randperm(len(self._views), generator=self._host_generator)
            self._order = order.tolist()
        return self._order.pop()

    def _traced_scene(self, iteration: int) -> Gaussians:
        """The scene with the 3D filter and the active harmonics."""
        coefficients = (self.schedule.active_sh_degree(iteration) + 1) ** 2
        smoothed = smooth(self.gaussians, self._sizes)
        return replace(smoothed, sh=smoothed.sh[:, :coefficients].contiguous())

    def _through_refined(
        self, refined: RefinedCameras, number: int, scene: Gaussians
    ) -> Differentiated:
        """The view through its camera as corrected; also differentiated by the corrections."""
        leaves = scene.map(lambda t: t.detach().requires_grad_())
        corrections = refined.corrections(number)
        origins, directions = refined.rays(number, corrections)
        # sh=linear is an expansion of this around a camera that stays.
        sh = "center" if self.config.sh == "center" else "ray"
        settings = replace(self._settings, sh=sh)
        image = trace_rays(leaves, origins.float(), directions.float(), settings)
        return by_autograd(image, leaves, corrections.values())

    def _sort(self) -> None:
        """Put Gaussians that are neighbours in space side by side in memory."""
        order = morton_order(self.gaussians.means)
        self.gaussians = self.gaussians.map(lambda t: t[order])
        self._optimizer.keep(order)
        self._average.keep(order)
        watched = self._strategy.tensors
        self._strategy.tensors = {name: t[order] for name, t in watched.items()}

    def _exposed(self) -> dict[str, Tensor]:
        return self._exposures.tensors if self._exposures else {}

    def _corrected(self) -> dict[str, Tensor]:
        return self._refined.tensors if self._refined else {}

    def _camera_rates(self, iteration: int) -> dict[str, float]:
        share = self.schedule.refinement_rate(iteration)
        return {"poses": share * self.config.lr_pose, "lenses": share * self.config.lr_intrinsics}

    def _keep_cameras(self, refined: RefinedCameras) -> None:
        """Train on with the corrected cameras as with given ones."""
        self._views = [v.through(refined.camera(i)) for i, v in enumerate(self._views)]
        self._filter = self._sampled_by(self._views)

    def _sampled_by(self, views: list[Photograph]) -> SamplingFilter:
        cameras = [view.camera for view in views]
        return SamplingFilter(cameras, NEAREST * self.extent, self.device)

    def _new_journal(self) -> Journal:
        return Journal(self.device, self.config.log_every if self.device.type == "cuda" else 1)

    def _read(self, wait: bool) -> None:
        try:
            self._journal.read(wait)
        except FaultError as fault:
            # The optimiser has done nothing since.
            self.iteration = self._optimizer.steps = fault.iteration - 1
            self._journal = self._new_journal()
            raise

    def _filter_sizes(self, scene: Gaussians) -> Tensor:
        intervals = self._filter.intervals(scene.means)
        return intervals * math.sqrt(self.config.filter_variance)

    def _photographs(self) -> list[int]:
        """Number and size in pixels of the training photographs."""
        return [len(self._views), sum(v.camera.width * v.camera.height for v in self._views)]
