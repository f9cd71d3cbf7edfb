"""nerfbaselines' cameras and data sets as gart's."""

import numpy as np
import pytest
import torch
from captures import look_at_origin, random_image

from gart.errors import GartError, UsageError

nerfbaselines = pytest.importorskip("nerfbaselines", reason="the plug-in needs nerfbaselines")

from nerfbaselines.cameras import project  # noqa: E402

from gart.datasets.convert import to_camera  # noqa: E402
from gart.nerfbaselines.convert import to_capture  # noqa: E402
from gart.nerfbaselines.method import GartMethod  # noqa: E402

LENSES = {
    "pinhole": [],
    "opencv": [-0.1, 0.02, 0.003, -0.002],
    "opencv_fisheye": [0.03, -0.01, 0.0, 0.0, 0.002, -0.001],
    "full_opencv": [0.1, -0.05, 0.002, 0.003, 0.01, 0.08, 0.02, 0.004],
}


def cameras(count=3, model="pinhole", lens=()):
    poses = []
    for i in range(count):
        rotation, translation = look_at_origin(i, count)
        poses.append(np.concatenate([rotation.T, -rotation.T @ translation[:, None]], 1))
    return nerfbaselines.new_cameras(
        poses=np.stack(poses).astype(np.float32),
        intrinsics=np.tile(np.float32([40, 42, 15.5, 12.5]), (count, 1)),
        camera_models=np.full(count, nerfbaselines.camera_model_to_int(model), np.int32),
        image_sizes=np.tile(np.int32([32, 24]), (count, 1)),
        distortion_parameters=np.tile(np.float32(lens), (count, 1)),
    )


def dataset(**changes):
    fields = {
        "cameras": cameras(),
        "image_paths": [f"/capture/images/a/{i}.png" for i in range(3)],
        "image_paths_root": "/capture/images",
        "images": [random_image(32, 24, seed=i) for i in range(3)],
        "points3D_xyz": np.ones((5, 3), np.float32),
        "points3D_rgb": np.full((5, 3), 7, np.uint8),
        "metadata": {"color_space": "srgb", "background_color": np.uint8([255, 0, 51])},
    }
    return nerfbaselines.new_dataset(**{**fields, **changes})


@pytest.mark.parametrize("model", LENSES)
def test_cameras_project_as_nerfbaselines_do(model):
    theirs = cameras(model=model, lens=LENSES[model])[1]
    points = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    ours = to_camera(theirs).project(torch.from_numpy(points))
    assert np.abs(ours.numpy() - project(theirs, points)).max() < 1e-3


def test_data_sets_become_training_views():
    masks = [np.arange(24 * 32).reshape(24, 32) % 3 == i for i in range(3)]
    # Images of mixed sizes come padded.
    images = [np.pad(random_image(32, 24, seed=i), ((0, 6), (0, 3), (0, 0))) for i in range(3)]
    source = dataset(masks=masks, images=images)
    capture = to_capture(source)
    assert [view.name for view in capture.train] == ["a/0.png", "a/1.png", "a/2.png"]
    for i, view in enumerate(capture.train):
        assert np.array_equal(view.image, random_image(32, 24, seed=i))
        assert np.array_equal(view.mask, masks[i])
        assert torch.equal(view.camera.c2w, torch.from_numpy(source["cameras"][i].poses))
    assert capture.test == []
    assert capture.background == (1.0, 0.0, 0.2)
    assert (capture.points.shape, capture.point_colors.tolist()) == ((5, 3), [[7, 7, 7]] * 5)


def test_data_sets_without_points_and_background():
    capture = to_capture(
        dataset(points3D_xyz=None, points3D_rgb=None, metadata={"color_space": "srgb"})
    )
    assert len(capture.points) == len(capture.point_colors) == 0
    assert capture.background == (0.0, 0.0, 0.0)


def test_what_gart_cannot_train_on_is_named():
    with pytest.raises(GartError, match=r"color_space 'linear'; gart trains on srgb"):
        to_capture(dataset(metadata={"color_space": "linear"}))
    with pytest.raises(GartError, match=r"a/0.png is float32 of shape \[24, 32, 3\]; expected"):
        to_capture(dataset(images=[np.zeros((24, 32, 3), np.float32)] * 3))
    bad = cameras()
    bad.poses[2, 0, 3] = np.nan
    with pytest.raises(GartError, match=r"a/2.png has a bad camera: .* not finite"):
        to_capture(dataset(cameras=bad))


def test_wrong_uses_of_the_method(tmp_path):
    with pytest.raises(GartError, match=r"a checkpoint or a training data set"):
        GartMethod()
    with pytest.raises(GartError, match=r"holds no gart checkpoint"):
        GartMethod(checkpoint=str(tmp_path))
    with pytest.raises(UsageError, match=r"--set names an unknown setting 'budgt'; did you mean"):
        GartMethod(train_dataset=dataset(), config_overrides={"budgt": "3"})
    method = GartMethod(train_dataset=dataset(), config_overrides={"iterations": "1"})
    method.train_iteration(0)
    method.save(str(tmp_path))
    loaded = GartMethod(checkpoint=str(tmp_path))
    assert loaded.get_info()["loaded_step"] == 1
    with pytest.raises(GartError, match=r"loaded without a training data set"):
        loaded.train_iteration(1)


def test_outputs_and_background():
    method = GartMethod(train_dataset=dataset(), config_overrides={"init_opacity": "0.001"})
    images = method.render(cameras()[0])
    assert {name: image.shape for name, image in images.items()} == {
        "color": (24, 32, 3),
        "depth": (24, 32),
        "accumulation": (24, 32),
    }
    empty = images["accumulation"] == 0
    assert empty.any()
    assert np.allclose(images["color"][empty], [1.0, 0.0, 0.2])
    (name,) = method.render(cameras()[0], options={"outputs": ("depth",)})
    assert name == "depth"
    tensors = method.render(cameras()[0], options={"keep_torch": True})
    assert all(isinstance(image, torch.Tensor) for image in tensors.values())
