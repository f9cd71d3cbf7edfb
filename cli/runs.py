"""What a command's SCENE and RUN arguments stand for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gart import datasets
from gart.errors import GartError, UsageError
from gart.evaluation import plan_rendering
from gart.io import RunFolder, find_run, load_ply
from gart.io.cameras import load_cameras
from gart.tracing import TraceSettings
from gart.training import preset_names
from gart.training.trainer import BACKGROUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gart.cameras import Camera
    from gart.capture import Capture, View
    from gart.cli.options import Mode, Split, TracerName
    from gart.scene import Gaussians


@dataclass(frozen=True)
class Source:
    """A trained scene to render: a run, or a splat file without photographs."""

    path: Path
    folder: RunFolder | None

    @classmethod
    def find(cls, run: str | None) -> Source:
        """The run folder or splat file that RUN names."""
        found = find_run(run)
        if isinstance(found, RunFolder):
            return cls(found.path, found)
        return cls(found, None)

    @property
    def renders(self) -> Path:
        """Where renderings go by default."""
        return self.folder.renders if self.folder else Path("renders") / self.path.stem

    def gaussians(self, device: str) -> Gaussians:
        """The trained scene."""
        scene = self.folder.load_gaussians() if self.folder else load_ply(self.path)
        return scene.to(device)

    def settings(self, mode: Mode, tracer: TracerName = "tiles") -> TraceSettings | None:
        """The renderer's settings that belong to how the scene was trained."""
        if mode != "rt":
            return None
        sh = self.folder.recorded("training", "sh", str) if self.folder else TraceSettings().sh
        try:
            return replace(TraceSettings(), sh=sh, tracer=tracer)
        except ValueError as error:
            raise GartError(f"{self.path}: {error}; restore its config.yaml") from error

    def planned(
        self,
        mode: Mode,
        device: str,
        cameras: list[Camera],
        metrics: Iterable[str] = (),
        tracer: TracerName = "tiles",
    ) -> tuple[Gaussians, TraceSettings | None]:
        """The trained scene on `device` and the renderer's settings; says what tracing needs."""
        gaussians, settings = self.gaussians("cpu"), self.settings(mode, tracer)
        cameras = [camera for camera in cameras if camera.is_central]  # others go by the tree
        if mode == "rt" and tracer == "tiles" and cameras:
            plan = plan_rendering(gaussians, cameras, device, settings=settings, metrics=metrics)
            print(plan, flush=True)
        return gaussians.to(device), settings

    def background(self) -> tuple[float, float, float]:
        """RGB behind the scene, as in training."""
        if self.folder is None:
            return (0.0, 0.0, 0.0)
        chosen = self.folder.recorded("training", "background", str)
        color = self.folder.read_config()["dataset"].get("background", [0.0, 0.0, 0.0])
        try:
            red, green, blue = map(float, color)
            if not all(0 <= value <= 1 for value in (red, green, blue)):
                raise ValueError("no colour")
        except (TypeError, ValueError) as error:
            raise GartError(
                f"{self.folder.config}: background under dataset is {color!r}; expected three "
                "numbers from 0 to 1: restore the file, or train the scene again with --overwrite"
            ) from error
        return BACKGROUNDS.get(chosen, (red, green, blue))

    def capture(self) -> Capture:
        """The photographs that the run was trained on, loaded again.

        Raises:
            UsageError: a splat file has none.
        """
        if self.folder is None:
            raise UsageError(
                f"{self.path} is a splat file and has no photographs; "
                "give a run folder, or cameras with gart render --trajectory FILE"
            )
        source = self.folder.recorded("dataset", "source", str)
        if os.path.isabs(source) and not os.path.isdir(source):
            raise GartError(
                f"{self.path} was trained on {source}, which is gone; put it back, or write where "
                f"it is now as source under dataset into {self.folder.config}"
            )
        return datasets.load(source, downscale=self.folder.recorded("dataset", "downscale", int))

    def views(self, split: Split) -> list[View]:
        """The photographs of a split, with cameras as the run refined them, if it did."""
        capture = self.capture()
        train, test = capture.train, capture.test
        if self.folder is not None and self.folder.cameras.is_file():
            refined = load_cameras(self.folder.cameras)
            train, test = (
                [replace(view, camera=refined.get(view.name, view.camera)) for view in views]
                for views in (train, test)
            )
        return {
            "train": train,
            "test": test,
            "all": sorted([*train, *test], key=lambda view: view.name),
        }[split]


def check_tracer(tracer: TracerName, modes: Iterable[Mode]) -> None:
    """Make sure that a ray tracer other than the default has something to trace.

    Raises:
        UsageError: none of `modes` traces rays.
    """
    if tracer != "tiles" and "rt" not in modes:
        raise UsageError(f"--tracer {tracer} traces rays and --mode tilegs has none; use --mode rt")


def find_source(subject: str | None) -> Source | None:
    """The run or splat file that a RUN|SCENE argument names, or None when it may name a scene.

    Raises:
        UsageError: it can name neither.
    """
    try:
        return Source.find(subject)
    except UsageError:
        if subject is None or not _may_be_scene(Path(subject)):
            raise
        return None


def _may_be_scene(path: Path) -> bool:
    """A folder, or something like a name: a word, or a data set and a word."""
    if path.exists() or path.suffix.lower() == ".ply":
        return path.is_dir()
    return len(path.parts) == 1 or path.parts[0] in datasets.scene_names()


def preset_for(scene: str) -> str:
    """The preset that a scene is trained with unless --config names another."""
    return scene if scene in preset_names() else "default"
