from dataclasses import replace

import cv2
import numpy as np
import pytest
from opencv_build import needs_exr
from scenes import gaussian

import gart.evaluation.render as render_module
from gart.errors import GartError, UsageError
from gart.evaluation import render_views
from gart.io.images import read_image
from gart.tracing import TraceSettings


def files(folder):
    """All files but the record of them."""
    found = (str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return sorted(name for name in found if name != "frames.jsonl")


def test_folder(gaussians, camera, rendered, tmp_path):
    views = [("left/a.JPG", camera), ("right/a.jpg", camera), ("frame.0001", camera)]
    done = []
    render_views(
        gaussians,
        views,
        tmp_path,
        mode="tilegs",
        background=(0, 0, 1),
        report=lambda *a: done.append(a),
    )
    assert files(tmp_path) == ["frame.0001.png", "left/a.png", "right/a.png"]
    assert read_image(tmp_path / "left" / "a.png")[0, 0].tolist() == [64, 0, 128]
    assert done == [(1, 3, "left/a.JPG"), (2, 3, "right/a.jpg"), (3, 3, "frame.0001")]
    assert {mode for mode, _ in rendered} == {"tilegs"}


def test_opacity_and_depth(gaussians, camera, rendered, tmp_path):
    render_views(gaussians, [("a.png", camera)], tmp_path, outputs=("opacity", "depth"))
    assert files(tmp_path) == ["a.depth.npy", "a.depth.png", "a.opacity.png"]
    assert np.load(tmp_path / "a.depth.npy")[2, 3] == 3
    assert read_image(tmp_path / "a.opacity.png")[0, 0].tolist() == [128] * 3


def test_alpha_is_straight_and_without_background(gaussians, camera, rendered, tmp_path):
    # Rendered: a quarter of red at half opacity is half of red.
    render_views(
        gaussians, [("a", camera)], tmp_path, outputs=("rgba",), background=(1.0, 1.0, 1.0)
    )
    assert read_image(tmp_path / "a.rgba.png")[3, 4].tolist() == [128, 0, 0, 128]


def test_surface_outputs(camera, tmp_path):
    sheet = gaussian((0, 0, 3), scales=(9, 9, 0.01), logit=9)
    outputs = ("color", "median_depth", "normals", "hit_count")
    for kept in (0, 1):
        found = render_views(sheet, [("a.jpg", camera)], tmp_path, outputs=outputs)
        assert found.kept == kept
    pngs = ["a.hit_count.png", "a.median_depth.png", "a.normals.png", "a.png"]
    assert [name for name in files(tmp_path) if name.endswith(".png")] == pngs
    normals = np.load(tmp_path / "a.normals.npy")
    assert normals.dtype == np.float32
    np.testing.assert_allclose(normals[20, 25], [0, 0, -0.99], atol=1e-4)
    red, green, blue = read_image(tmp_path / "a.normals.png")[20, 25].tolist()
    assert blue == 1
    assert {red, green} <= {127, 128}
    np.testing.assert_allclose(np.load(tmp_path / "a.median_depth.npy"), 3, atol=1e-3)
    count = cv2.imread(str(tmp_path / "a.hit_count.png"), cv2.IMREAD_UNCHANGED)
    assert count.dtype == np.uint16
    assert (count == 1).all()
    assert (np.load(tmp_path / "a.hit_count.npy") == 1).all()


@needs_exr
def test_exr_holds_median_depth_and_normals(camera, tmp_path):
    sheet = gaussian((0, 0, 3), scales=(9, 9, 0.01), logit=9)
    outputs = ("median_depth_exr", "normals_exr")
    render_views(sheet, [("a", camera)], tmp_path, outputs=outputs)
    normals = cv2.imread(str(tmp_path / "a.normals.exr"), cv2.IMREAD_UNCHANGED)[..., ::-1]
    np.testing.assert_allclose(normals[20, 25], [0, 0, -0.99], atol=1e-4)
    depth = cv2.imread(str(tmp_path / "a.median_depth.exr"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_allclose(depth, 3, atol=1e-3)


def test_surfaces_are_not_rasterized(gaussians, camera, tmp_path):
    with pytest.raises(UsageError, match=r"output is 'normals'.* --mode is tilegs; use"):
        render_views(gaussians, [("a", camera)], tmp_path, mode="tilegs", outputs=("normals",))
    assert not files(tmp_path)


@needs_exr
def test_exr_holds_the_depth(gaussians, camera, rendered, tmp_path):
    render_views(gaussians, [("a", camera)], tmp_path, outputs=("exr",))
    depth = cv2.imread(str(tmp_path / "a.depth.exr"), cv2.IMREAD_UNCHANGED)
    assert (depth == 3).all()


def test_video(gaussians, camera, rendered, tmp_path):
    render_views(gaussians, [("0", camera)] * 5, tmp_path / "v.mp4", fps=10)
    capture = cv2.VideoCapture(str(tmp_path / "v.mp4"))
    assert capture.get(cv2.CAP_PROP_FRAME_COUNT) == 5
    assert capture.get(cv2.CAP_PROP_FPS) == 10
    _, frame = capture.read()
    assert np.abs(frame[5, 5].astype(int) - [0, 0, 64]).max() < 8  # BGR


def test_what_cannot_be_rendered(gaussians, camera, rendered, tmp_path):
    views = [("a.png", camera), ("a.jpg", camera)]
    with pytest.raises(GartError, match=r"two views would be written to .*a.png"):
        render_views(gaussians, views, tmp_path)
    with pytest.raises(GartError, match=r"no view to render"):
        render_views(gaussians, [], tmp_path)
    with pytest.raises(UsageError, match=r"output is 'normal'; expected some of color, rgba"):
        render_views(gaussians, views, tmp_path, outputs=("normal",))
    with pytest.raises(UsageError, match=r"a video shows colour only"):
        render_views(gaussians, views, tmp_path / "v.mp4", outputs=("depth",))
    sizes = [("a", camera), ("b", replace(camera, width=52))]
    with pytest.raises(GartError, match=r"a frame is 52 x 40, the first one is 50 x 40"):
        render_views(gaussians, sizes, tmp_path / "v.mp4")
    assert files(tmp_path) == []


def test_interrupted_rendering_keeps_whole_files(
    gaussians, camera, rendered, tmp_path, monkeypatch
):
    render_views(gaussians, [("a", camera)], tmp_path)
    before = (tmp_path / "a.png").read_bytes()

    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(render_module, "render_view", fail)
    for output in (tmp_path, tmp_path / "v.mp4"):
        with pytest.raises(KeyboardInterrupt):
            render_views(gaussians, [("a", camera), ("b", camera)], output)
    assert files(tmp_path) == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == before


def test_files_that_are_there_are_kept(gaussians, camera, rendered, tmp_path):
    views = [(str(i), replace(camera, cx=20.0 + i)) for i in range(3)]
    assert render_views(gaussians, views[:2], tmp_path).kept == 0
    # As when a crash cut the record's last line off, and someone deleted a file.
    with (tmp_path / "frames.jsonl").open("a") as record:
        record.write('{"file": "2.p')
    (tmp_path / "1.png").unlink()
    rendered.clear()
    assert render_views(gaussians, views, tmp_path).kept == 1
    assert [camera.cx for _, camera in rendered] == [21, 22]
    assert files(tmp_path) == ["0.png", "1.png", "2.png"]
    rendered.clear()
    assert render_views(gaussians, views, tmp_path).kept == 3
    assert rendered == []
    # A further output needs the rendering, and leaves the first as it is.
    before = (tmp_path / "0.png").stat().st_mtime_ns
    assert render_views(gaussians, views, tmp_path, outputs=("color", "opacity")).kept == 0
    assert len(rendered) == 3
    assert (tmp_path / "0.png").stat().st_mtime_ns == before


def test_whatever_changes_the_image_is_rendered_again(gaussians, camera, rendered, tmp_path):
    def kept(scene=gaussians, view=camera, **options):
        return render_views(scene, [("a", view)], tmp_path, **options).kept

    assert (kept(), kept()) == (0, 1)
    turned = camera.c2w.clone()
    turned[0, 3] = 0.1
    changed = gaussians.map(lambda t: t.clone())
    changed.means[1, 2] = 4
    for options in (
        {"mode": "tilegs"},
        {"background": (1.0, 0.0, 0.0)},
        {"settings": TraceSettings(sh="center")},
        {"view": replace(camera, c2w=turned)},
        {"view": replace(camera, fy=43.0)},
        {"scene": changed},
    ):
        assert (kept(**options), kept(**options)) == (0, 1), options
        assert (kept(), kept()) == (0, 1)


def test_no_name_leads_out_of_the_folder(gaussians, camera, rendered, tmp_path):
    photograph = tmp_path / "photograph.png"
    photograph.write_bytes(b"mine")
    names = [str(photograph), "../up.png", "a/../../b.png"]
    render_views(gaussians, [(name, camera) for name in names], tmp_path / "out")
    assert photograph.read_bytes() == b"mine"
    assert files(tmp_path / "out") == ["a/b.png", str(photograph.relative_to("/")), "up.png"]
    assert {p.name for p in tmp_path.iterdir()} == {"out", photograph.name}


def test_two_views_for_one_file_of_different_outputs(gaussians, camera, rendered, tmp_path):
    views = [("a.png", camera), ("a.rgba.png", camera)]
    with pytest.raises(GartError, match=r"two views would be written to .*a\.rgba\.png; rename a"):
        render_views(gaussians, views, tmp_path / "out", outputs=("color", "rgba"))
    assert not (tmp_path / "out").exists()


def test_files_of_another_rendering_are_counted(gaussians, camera, rendered, tmp_path):
    views = [(str(i), replace(camera, fx=10.0 + i)) for i in range(3)]
    assert render_views(gaussians, views, tmp_path).others == 0
    (tmp_path / "mine.png").write_bytes(b"")  # not gart's
    assert render_views(gaussians, views[:1], tmp_path) == (1, 2, "")
    assert render_views(gaussians, views, tmp_path) == (3, 0, "")


def test_a_damaged_record_means_rendering_again(gaussians, camera, rendered, tmp_path):
    views = [("a", camera)]
    render_views(gaussians, views, tmp_path)
    (tmp_path / "frames.jsonl").write_bytes(b"\xff\n[]\n{}\n3\n")
    assert render_views(gaussians, views, tmp_path).kept == 0
    assert render_views(gaussians, views, tmp_path).kept == 1
