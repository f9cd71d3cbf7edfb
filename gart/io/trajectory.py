"""Camera paths: the `nerfbaselines-v1` JSON that the nerfbaselines viewer exports.

Its frames have no distortion, so the lenses are the ideal ones; equirectangular and orthographic
cameras are an extension of gart's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gart.cameras import MAX_SIDE, Camera
from gart.errors import GartError
from gart.io.atomic import write_json

FORMAT = "nerfbaselines-v1"
MODELS = ("pinhole", "opencv_fisheye", "equirectangular", "orthographic")
"""`camera_model` of a trajectory, and of its cameras."""

_LARGEST = torch.finfo(torch.float32).max


class Trajectory(NamedTuple):
    """Cameras of one size and lens model, and the frames per second to play them at."""

    cameras: list[Camera]
    fps: float


def load_trajectory(path: str | Path) -> Trajectory:
    """Read the frames of a trajectory; keyframes and appearances are the viewer's affair.

    Raises:
        GartError: missing, not this format, or a frame's field is wrong; the message names both.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise GartError(f"trajectory {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise GartError(f"trajectory {path} is not valid JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise GartError(f"trajectory {path}: format is {found!r}; expected {FORMAT!r}")
    if (model := data.get("camera_model", "pinhole")) not in MODELS:
        raise GartError(
            f"trajectory {path}: camera_model is {model!r}; expected one of {', '.join(MODELS)}"
        )
    width, height = _numbers(data.get("image_size"), 2, f"trajectory {path}: image_size")
    (fps,) = _numbers([data.get("fps", 30.0)], 1, f"trajectory {path}: fps")
    if not all(side in range(1, MAX_SIDE + 1) for side in (width, height)) or fps <= 0:
        raise GartError(
            f"trajectory {path}: image_size is {width:g} x {height:g} and fps {fps:g}; "
            f"expected whole pixels from 1 to {MAX_SIDE} and positive fps"
        )
    frames = data.get("frames")
    if not isinstance(frames, list) or not frames:
        raise GartError(f"trajectory {path}: frames is empty or no list; export the path again")
    size = (int(width), int(height))
    cameras = [
        _camera(f, size, model, f"trajectory {path}: frame {i}:") for i, f in enumerate(frames)
    ]
    return Trajectory(cameras, fps)


def save_trajectory(path: str | Path, cameras: Sequence[Camera], fps: float = 30.0) -> None:
    """Write `cameras` of one size and one of the `MODELS` as a trajectory, atomically.

    Raises:
        GartError: no camera, one with a distorted lens, a shutter or an aperture, or one of another
            size or lens model.
    """
    if not cameras:
        raise GartError(f"{path}: a trajectory needs at least one camera")
    size = [cameras[0].width, cameras[0].height]
    model = cameras[0].model if cameras[0].model in MODELS else "pinhole"
    for i, camera in enumerate(cameras):
        plain = not any(camera.distortion) and camera.shutter is None and camera.aperture is None
        if camera.model != model or [camera.width, camera.height] != size or not plain:
            raise GartError(
                f"{path}: camera {i} is {'' if plain else 'no plain '}{camera.model}, "
                f"{camera.width} x {camera.height}; a trajectory holds {model} cameras of one "
                f"size, here {size[0]} x {size[1]}"
            )
    frames = [
        {
            "pose": camera.c2w.flatten().tolist(),
            "intrinsics": [camera.fx, camera.fy, camera.cx, camera.cy],
            "appearance_weights": [],  # nerfbaselines cannot read a frame without it
        }
        for camera in cameras
    ]
    header = {"format": FORMAT, "camera_model": model, "image_size": size, "fps": fps}
    write_json(path, {**header, "frames": frames})


def _camera(frame: Any, size: tuple[int, int], model: str, where: str) -> Camera:
    if not isinstance(frame, dict):
        raise GartError(f"{where} is {type(frame).__name__}; expected pose and intrinsics")
    c2w = torch.tensor(_numbers(frame.get("pose"), 12, f"{where} pose")).reshape(3, 4)
    fx, fy, cx, cy = _numbers(frame.get("intrinsics"), 4, f"{where} intrinsics")
    rotation = c2w[:, :3].double()
    if not torch.allclose(rotation @ rotation.T, torch.eye(3).double(), atol=1e-3) or (
        rotation.det() < 0
    ):
        raise GartError(
            f"{where} pose holds no rotation; expected a row-major 3 x 4 camera-to-world matrix, "
            "x right, y down, z forward"
        )
    if fx <= 0 or fy <= 0:
        raise GartError(f"{where} intrinsics have focal lengths {fx:g}, {fy:g}; expected positive")
    return Camera(c2w, fx, fy, cx, cy, *size, model)


def _numbers(value: Any, count: int, where: str) -> list[float]:
    good = (
        isinstance(value, list)
        and len(value) == count
        and all(type(v) in (int, float) and abs(v) <= _LARGEST for v in value)
    )
    if not good:
        raise GartError(f"{where} is {str(value)[:80]}; expected {count} finite number(s)")
    return [float(v) for v in value]
