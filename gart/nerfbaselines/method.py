"""The method class that nerfbaselines trains, saves, loads and renders with.

A checkpoint is gart's own (`gart.training.checkpoint`) with the result beside it,
`point_cloud.ply`, which any splat viewer and `gart render` read.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from nerfbaselines import Method
from torch import Tensor, tensor

from gart.cli.device import choose_device
from gart.datasets.convert import to_camera
from gart.errors import GartError
from gart.evaluation import render_view
from gart.io import load_ply, save_ply
from gart.nerfbaselines.convert import to_capture
from gart.nerfbaselines.spec import CAMERA_MODELS, OUTPUTS, REQUIRED_FEATURES
from gart.scene import Gaussians
from gart.tracing import TraceSettings
from gart.training import Trainer, config_from, plan_training
from gart.training.checkpoint import State, checkpoints, load_checkpoint, save_checkpoint
from gart.training.trainer import BACKGROUNDS

RESULT = "point_cloud.ply"
ABOUT = {
    "required_features": frozenset(REQUIRED_FEATURES),
    "supported_camera_models": frozenset(CAMERA_MODELS),
    "supported_outputs": OUTPUTS,
    "can_resume_training": True,
}


class GartMethod(Method):
    """gart behind nerfbaselines' interface.

    Args:
        checkpoint: folder that `save` wrote; None to start anew.
        train_dataset: photographs to train on; None to render only.
        config_overrides: training settings by name (`gart.training.TrainConfig`); values may be
            strings.

    Raises:
        UsageError: an unknown setting or value; a checkpoint of other settings or photographs.
        GartError: the checkpoint or the data set cannot be used.
    """

    def __init__(
        self,
        *,
        checkpoint: str | None = None,
        train_dataset: Any = None,
        config_overrides: dict[str, Any] | None = None,
    ) -> None:
        if checkpoint is None and train_dataset is None:
            raise GartError("gart needs a checkpoint or a training data set; neither was given")
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._device = choose_device("auto")
        saved = None if self._checkpoint is None else _load(self._checkpoint)
        settings: Any = {} if saved is None else saved.values["config"]
        self._config = config_from({**settings, **(config_overrides or {})}, "--set")
        self._settings = replace(TraceSettings(), sh=self._config.sh)
        self._trainer: Trainer | None = None
        self._scene: tuple[int, Gaussians] | None = None
        if train_dataset is None:
            assert saved is not None
            assert self._checkpoint is not None
            self._start = int(str(saved.values["iteration"]))
            self._background: Any = saved.values["background"]
            scene = load_ply(self._checkpoint / RESULT).to(self._device)
            self._scene = (self._start, scene)
            return
        capture = to_capture(train_dataset)
        plan_training(capture, self._config, self._device)
        self._background = BACKGROUNDS.get(self._config.background, capture.background)
        self._trainer = Trainer(capture, self._config, self._device)
        if saved is not None:
            self._trainer.load_state(saved)
        self._start = self._trainer.iteration

    @classmethod
    def get_method_info(cls) -> Any:
        """What the data set must have and what `render` gives."""
        return {"method_id": "gart", **ABOUT}

    def get_info(self) -> Any:
        """`get_method_info`, and this model's length of training, start and settings."""
        return {
            **self.get_method_info(),
            "num_iterations": self._config.iterations,
            "loaded_step": None if self._checkpoint is None else self._start,
            "loaded_checkpoint": None if self._checkpoint is None else str(self._checkpoint),
            "hparams": self._config.as_dict(),
        }

    def train_iteration(self, step: int) -> dict[str, float]:
        """One iteration: `loss`, `psnr` of its view in dB, `gaussians`; `step` is counted here."""
        if self._trainer is None:
            raise GartError("this model was loaded without a training data set and cannot train on")
        return self._trainer.step()

    def render(self, camera: Any, *, options: Any = None) -> dict[str, Any]:
        """Trace one camera: `color` [H, W, 3] over the background, `depth` and `accumulation`
        [H, W], float32; numpy arrays, or tensors where `options` has `keep_torch`.
        """
        options = options or {}
        rendering = render_view(self._exported(), to_camera(camera.item()), "rt", self._settings)
        background = tensor(self._background, device=rendering.color.device)
        images: dict[str, Tensor] = {
            "color": rendering.over(background).clamp(0, 1),
            "depth": rendering.depth,
            "accumulation": rendering.opacity,
        }
        wanted = options.get("outputs") or OUTPUTS
        chosen = {name: image for name, image in images.items() if name in wanted}
        if options.get("keep_torch"):
            return chosen
        return {name: image.cpu().numpy() for name, image in chosen.items()}

    def save(self, path: str) -> None:
        """Write the model into the folder `path`; equal models give equal files."""
        folder = Path(path)
        if self._trainer is None:
            assert self._checkpoint is not None
            for file in _files(self._checkpoint):
                shutil.copyfile(file, folder / file.name)
            return
        state = self._trainer.state()
        values = {**state.values, "background": list(self._background)}
        save_checkpoint(folder, State(state.tensors, values), keep=1)
        save_ply(folder / RESULT, self._exported())

    def _exported(self) -> Gaussians:
        """The scene to render, made anew after an iteration."""
        if self._trainer is not None and (
            self._scene is None or self._scene[0] != self._trainer.iteration
        ):
            self._scene = (self._trainer.iteration, self._trainer.export())
        assert self._scene is not None
        return self._scene[1]


def _load(folder: Path) -> State:
    saved = checkpoints(folder)
    if not saved:
        raise GartError(f"{folder} holds no gart checkpoint (iteration_*.json)")
    return load_checkpoint(saved[-1])


def _files(folder: Path) -> list[Path]:
    """What `save` wrote there."""
    record = checkpoints(folder)[-1]
    return [record, record.with_suffix(".safetensors"), folder / RESULT]
