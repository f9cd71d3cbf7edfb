"""Images traced in strips: equal to those traced whole, with the hits of one strip at a time."""

import pytest
import torch
from oracle import OUTPUTS, gradients, loss_weights
from scenes import FISHEYE, OPENCV, camera, layers, random_gaussians, shell

from gart.forecast import Load, Tracing
from gart.memory import OutOfMemoryError
from gart.stages import Stages
from gart.tracing import TraceSettings, strips, trace
from gart.tracing.ray_grid import ray_grid
from gart.tracing.settings import BACKWARD_MODES, LT_LAYOUTS

CAMERAS = {
    "pinhole": camera(70, 203),
    "one row more": camera(37, 65),
    "distorted": camera(70, 203, model="opencv", distortion=OPENCV),
    "fisheye": camera(96, 150, fov=200, model="opencv_fisheye", distortion=FISHEYE),
    "pixels without rays": camera(130, 140, fov=330, model="opencv_fisheye"),
}
IN_STRIPS = TraceSettings(memory_limit=0)


@pytest.fixture(autouse=True)
def _fresh_loads(monkeypatch):
    monkeypatch.setattr(strips, "_loads", {})
    monkeypatch.setattr(strips, "_free", {})


def leaves(scene):
    return scene.map(lambda t: t.clone().requires_grad_())


def size_of(view, scene):
    return strips.image_size(ray_grid(view, "cpu"), TraceSettings(), [*scene.tensors().values()])


def traced_strips(scene, view, settings):
    """Rows of every strip that an image without gradients is traced in."""
    with Stages() as stages, torch.no_grad():
        trace(scene, view, settings)
    return [int(pixels) // view.width for pixels in stages.counts["pixels"]]


@pytest.mark.parametrize("name", CAMERAS)
def test_bands_have_the_images_rays_tiles_and_blocks(name):
    grid = ray_grid(CAMERAS[name], "cpu")
    for rows in (64, 128):
        bands = strips.bands(grid, rows)
        assert len(bands) == -(-grid.ray_xy.shape[0] // rows)
        for tensor in ("ray_xy", "tile_face", "tile_rect", "block_rect"):
            joined = torch.cat([getattr(band, tensor) for band in bands])
            assert torch.equal(joined.nan_to_num(), getattr(grid, tensor).nan_to_num()), tensor


@pytest.mark.parametrize("name", CAMERAS)
def test_images_are_equal_bit_by_bit(name):
    view, scene = CAMERAS[name], shell(800)
    whole, cut = trace(scene, view), trace(scene, view, IN_STRIPS)
    assert len(traced_strips(scene, view, IN_STRIPS)) == -(-view.height // 64)
    assert whole.opacity.max() > 0.5
    for output in OUTPUTS:
        assert torch.equal(getattr(cut, output), getattr(whole, output)), output


@pytest.mark.parametrize("outputs", [*((name,) for name in OUTPUTS), OUTPUTS], ids="-".join)
@pytest.mark.parametrize("name", ["pinhole", "distorted", "fisheye"])
def test_gradients_are_equal_up_to_the_order_of_summation(name, outputs):
    view, scene = CAMERAS[name], leaves(shell(300))
    weights = loss_weights(view, outputs)
    whole = gradients(trace(scene, view), weights, scene)
    cut = gradients(trace(scene, view, IN_STRIPS), weights, scene)
    for tensor, gradient in whole.items():
        assert gradient.norm() > 0 or (tensor == "sh" and "color" not in outputs)
        assert (cut[tensor] - gradient).norm() <= 1e-5 * gradient.norm(), tensor


@pytest.mark.parametrize("layout", LT_LAYOUTS)
@pytest.mark.parametrize("backward", BACKWARD_MODES)
def test_every_mode_and_layout(backward, layout):
    view, scene = camera(40, 130), leaves(random_gaussians(100))
    weights = loss_weights(view, OUTPUTS)
    whole = gradients(trace(scene, view), weights, scene)
    settings = TraceSettings(memory_limit=0, backward=backward, lt_layout=layout)
    cut = gradients(trace(scene, view, settings), weights, scene)
    for tensor, gradient in whole.items():
        assert (cut[tensor] - gradient).norm() < 1e-4 * gradient.norm(), tensor


def test_only_what_is_asked_for_has_a_gradient():
    view, scene = camera(40, 130), random_gaussians(50)
    scene.means.requires_grad_()
    trace(scene, view, IN_STRIPS).color.sum().backward()
    expected = scene.means.grad.clone()
    assert scene.sh.grad is None
    scene.means.grad = None
    trace(scene, view).color.sum().backward()
    torch.testing.assert_close(scene.means.grad, expected)


def test_the_hits_of_one_strip_live_at_a_time():
    view, scene = camera(64, 192, fov=8), leaves(layers(60))
    with Stages() as whole:
        trace(scene, view).color.sum().backward()
    saved = []
    with (
        Stages() as cut,
        torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append(t.nbytes) or t, lambda t: t
        ),
    ):
        loss = trace(scene, view, IN_STRIPS).color.sum()
        kept = sum(saved)
        loss.backward()
    scene_bytes = sum(t.nbytes for t in scene.tensors().values())
    image_bytes = 5 * 4 * view.width * view.height
    assert scene_bytes <= kept < scene_bytes + image_bytes  # no hits, no lists
    (whole_buffer,) = whole.counts["LT buffer bytes"]
    assert len(cut.counts["LT buffer bytes"]) == 6  # three strips, each traced twice
    assert max(cut.counts["LT buffer bytes"]) < 0.4 * whole_buffer


def test_as_few_strips_as_fit():
    view, scene = camera(64, 512), random_gaussians(400)
    image = size_of(view, scene)
    for count, rows in [(1, [512]), (2, [256, 256]), (3, [192, 192, 128]), (4, [128] * 4)]:
        settings = TraceSettings(memory_limit=int(image.needed(count, False)) + 1)
        assert traced_strips(scene, view, settings) == rows
    assert image.strips(0, True) == image.strips(0, False) == 8


def test_what_earlier_images_met_is_expected_of_the_next():
    view, scene = camera(32, 32, fov=40), leaves(layers(160))
    before = size_of(view, scene)
    assert before.load == Load()
    with Stages() as stages:
        trace(scene, view)
    hits = stages.counts["hits"][0] / 32**2
    assert hits > 100
    after = size_of(view, scene)
    assert after.load.hits == pytest.approx(1.1 * hits)
    assert after.needed(1, True) > before.needed(1, True)


def failing(failures, error):
    """trace_rays whose first calls fail."""
    calls = []

    def trace_rays(rays, *scene):
        calls.append(rays.ray_xy.shape[0])
        if len(calls) <= failures:
            raise error
        return rays.ray_xy[..., :1].expand(-1, -1, 3), rays.ray_xy[..., 0], rays.ray_xy[..., 1]

    return trace_rays, calls


def test_an_image_that_does_not_fit_is_cut_and_tried_again():
    grid, scene = ray_grid(camera(16, 512), "cpu"), random_gaussians(10).tensors().values()
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 ...")
    trace_rays, calls = failing(2, error)
    _, opacity, _ = strips.trace(trace_rays, grid, TraceSettings(), *scene)
    assert calls == [512, 128, *[64] * 8]
    assert torch.equal(opacity, grid.ray_xy[..., 0])

    trace_rays, calls = failing(9, error)
    message = (
        "out of memory: tracing 16 x 64 pixels of 10 Gaussians asked for 2.1 GB more than is free; "
        "take fewer Gaussians or smaller images"
    )
    with pytest.raises(OutOfMemoryError, match=message):
        strips.trace(trace_rays, grid, TraceSettings(), *scene)
    assert calls == [512, 128, 64]


def test_other_errors_pass():
    grid, scene = ray_grid(camera(16, 512), "cpu"), random_gaussians(10).tensors().values()
    trace_rays, calls = failing(1, RuntimeError("CUDA error: an illegal memory access"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        strips.trace(trace_rays, grid, TraceSettings(), *scene)
    assert calls == [512]


def test_free_memory_decides_where_no_limit_is_set(monkeypatch):
    view, scene = camera(64, 512), random_gaussians(400)
    image = size_of(view, scene)
    monkeypatch.setattr(strips, "free_memory", lambda device: image.needed(2, False) / 0.89)
    assert traced_strips(scene, view, TraceSettings()) == [256, 256]


def test_negative_limit():
    with pytest.raises(ValueError, match="memory_limit is -1"):
        TraceSettings(memory_limit=-1)


@pytest.mark.cuda
@pytest.mark.parametrize("name", CAMERAS)
def test_cuda(name):
    view, scene = CAMERAS[name], leaves(shell(800).to("cuda"))
    weights = {k: w.to("cuda") for k, w in loss_weights(view, OUTPUTS).items()}
    whole, cut = trace(scene, view), trace(scene, view, IN_STRIPS)
    for output in OUTPUTS:
        assert torch.equal(getattr(cut, output), getattr(whole, output)), output
    expected, found = gradients(whole, weights, scene), gradients(cut, weights, scene)
    for tensor, gradient in expected.items():
        assert (found[tensor] - gradient).norm() < 1e-4 * gradient.norm(), tensor


@pytest.mark.cuda
def test_cuda_memory_falls_with_strips():
    view, scene = camera(640, 1024), leaves(random_gaussians(20_000).to("cuda"))
    peaks = []
    for settings in (TraceSettings(), IN_STRIPS):
        for _ in range(300):  # sizes are remembered from frame to frame and shrink slowly
            with torch.no_grad():
                trace(scene, view, settings)
        trace(scene, view, settings).color.sum().backward()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        trace(scene, view, settings).color.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 0.5 * peaks[0]


def test_blocks_and_rows():
    image = Tracing(1000, 16, 100, 333)
    assert image.blocks == 6
    assert [image.rows(n) for n in (1, 2, 3, 4, 6)] == [333, 192, 128, 128, 64]
