"""Writes COLMAP models with pycolmap, and where COLMAP itself projects their points.

Run as `python pycolmap_judge.py FOLDER`, in a process of its own: pycolmap and OpenCV, loaded
together, share symbols of different builds of libpng and crash. For each camera model FOLDER/MODEL
holds binary/sparse/0, text/sparse/0 and pixels.npz: image name -> [points, 2], NaN where COLMAP
projects nothing. FOLDER/rig holds two cameras on a rig.
"""

import sys
from pathlib import Path

import numpy as np
import pycolmap

WIDTH, HEIGHT = 640, 480
CAMERAS = {
    "SIMPLE_PINHOLE": [500.0, 322.0, 238.5],
    "PINHOLE": [500, 510, 322, 238.5],
    "SIMPLE_RADIAL": [500, 322, 238.5, -0.15],
    "RADIAL": [500, 322, 238.5, -0.15, 0.04],
    "OPENCV": [500, 510, 322, 238.5, -0.15, 0.04, 0.003, -0.002],
    "FULL_OPENCV": [500, 510, 322, 238.5, 0.2, -0.1, 0.003, -0.002, 0.02, 0.3, -0.04, 0.01],
    "FOV": [500, 510, 322, 238.5, 0.9],
    "SIMPLE_FISHEYE": [300, 322, 238.5],
    "FISHEYE": [300, 310, 322, 238.5],
    "SIMPLE_RADIAL_FISHEYE": [300, 322, 238.5, 0.04],
    "RADIAL_FISHEYE": [300, 322, 238.5, 0.04, -0.01],
    "OPENCV_FISHEYE": [300, 310, 322, 238.5, 0.04, -0.01, 0.004, -0.001],
    "THIN_PRISM_FISHEYE": [
        *(300, 310, 322, 238.5, 0.04, -0.01),
        *(0.003, -0.002, 0.004, -0.001, 0.005, -0.004),
    ],
    "EQUIRECTANGULAR": [WIDTH, HEIGHT],
}
REFUSED = {
    "RAD_TAN_THIN_PRISM_FISHEYE": [300, 310, 322, 238.5, *[0.001] * 12],
    "SIMPLE_DIVISION": [500, 322, 238.5, -0.1],
    "DIVISION": [500, 510, 322, 238.5, -0.1],
    "EUCM": [500, 510, 322, 238.5, 0.5, 1.0],
}


def pose(random):
    """World to camera: about 4 units from the origin, turned by up to 40 degrees."""
    axis = random.normal(size=3)
    rotation = pycolmap.Rotation3d(0.7 * random.random() * axis / np.linalg.norm(axis))
    return pycolmap.Rigid3d(rotation, np.array([*random.uniform(-0.5, 0.5, 2), 4.0]))


def camera(number, model, params):
    return pycolmap.Camera(model=model, width=WIDTH, height=HEIGHT, params=params, camera_id=number)


def scene(model, params):
    random = np.random.default_rng(3)
    made = pycolmap.Reconstruction()
    made.add_camera_with_trivial_rig(camera(1, model, params))
    for i in range(3):
        image = pycolmap.Image(f"view {i} é.png", np.zeros((0, 2)), 1, i + 1)
        made.add_image_with_trivial_frame(image, pose(random))
    return made


def rig():
    random = np.random.default_rng(4)
    made = pycolmap.Reconstruction()
    for number in (1, 2):
        made.add_camera(camera(number, "PINHOLE", [500 + number, 510, 322, 238.5]))
    sensors = [pycolmap.sensor_t(pycolmap.SensorType.CAMERA, number) for number in (1, 2)]
    bracket = pycolmap.Rig()
    bracket.rig_id = 1
    bracket.add_ref_sensor(sensors[0])
    beside = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([0, 0.2, 0])), np.array([0.3, 0, 0]))
    bracket.add_sensor(sensors[1], beside)
    made.add_rig(bracket)
    for i in range(2):
        frame = pycolmap.Frame()
        frame.frame_id, frame.rig_id = i + 1, 1
        frame.rig_from_world = pose(random)
        images = []
        for number, sensor in enumerate(sensors, 1):
            image = pycolmap.Image(f"{number}/{i}.png", np.zeros((0, 2)), number, 2 * i + number)
            image.frame_id = frame.frame_id
            frame.add_data_id(pycolmap.data_t(sensor, image.image_id))
            images.append(image)
        made.add_frame(frame)
        for image in images:
            made.add_image(image)
        made.register_frame(frame.frame_id)
    return made


def write(made, folder):
    random = np.random.default_rng(5)
    for xyz in random.uniform(-1.5, 1.5, (200, 3)):
        made.add_point3D(xyz, pycolmap.Track(), random.integers(0, 256, 3).astype(np.uint8))
    order = sorted(made.points3D)
    pixels = {}
    for image in made.images.values():
        found = [image.project_point(made.points3D[number].xyz) for number in order]
        pixels[image.name] = [(np.nan, np.nan) if f is None else tuple(f) for f in found]
    for kind in ("binary", "text"):
        model = folder / kind / "sparse/0"
        model.mkdir(parents=True)
        (made.write_binary if kind == "binary" else made.write_text)(str(model))
    np.savez(folder / "pixels.npz", **pixels)


def main(folder):
    for model, params in {**CAMERAS, **REFUSED}.items():
        write(scene(model, params), folder / model)
    write(rig(), folder / "rig")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
