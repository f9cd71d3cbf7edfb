"""cameras.json of a run that refined its cameras: the corrected ones, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from gart.cameras import Camera
from gart.errors import GartError
from gart.io.atomic import write_json
from gart.optics import RollingShutter


def save_cameras(path: str | Path, cameras: Mapping[str, Camera]) -> None:
    """Write `cameras` by the names of their photographs, atomically: camera-to-world poses
    (OpenCV's axes) and intrinsics in pixels of the image used.
    """
    records = {}
    for name, camera in cameras.items():
        records[name] = {
            "c2w": camera.c2w.tolist(),
            **{key: getattr(camera, key) for key in ("fx", "fy", "cx", "cy", "width", "height")},
            "model": camera.model,
            "distortion": list(camera.distortion),
        }
        if camera.shutter is not None:
            records[name]["shutter_end"] = camera.shutter.end.tolist()
    write_json(path, records)


def load_cameras(path: str | Path) -> dict[str, Camera]:
    """What `save_cameras` wrote.

    Raises:
        GartError: the file cannot be read, or is damaged.
    """
    cameras = {}
    try:
        for name, record in json.loads(Path(path).read_text("utf-8")).items():
            pose, end = torch.tensor(record.pop("c2w")), record.pop("shutter_end", None)
            camera = Camera(pose, **{**record, "distortion": tuple(record["distortion"])})
            if end is not None:
                camera = replace(camera, shutter=RollingShutter(torch.tensor(end)))
            cameras[name] = camera
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise GartError(
            f"{path} cannot be read ({error}); restore it, or delete it to take the "
            "cameras that the capture gives"
        ) from error
    return cameras
