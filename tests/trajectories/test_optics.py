import math
from dataclasses import replace

import pytest
import torch
from scenes import camera, random_pose

from gart.errors import GartError, UsageError
from gart.optics import ThinLens
from gart.trajectories import add_aperture, add_rolling_shutter, usual_extent


def ring(count=8, radius=4.0):
    """Cameras on a circle that look at its middle."""
    views = []
    for i in range(count):
        angle = 2 * math.pi * i / count
        c, s = math.cos(angle), math.sin(angle)
        pose = torch.tensor([[c, 0, -s, radius * s], [0, 1, 0, 0], [s, 0, c, -radius * c]])
        views.append(camera(40, 20, pose=pose))
    return views


def test_parallel_views_show_what_the_cameras_saw():
    view = ring()[0]
    assert usual_extent(ring()) == pytest.approx(4 * 20 / view.fy, rel=1e-5)
    with pytest.raises(GartError, match="do not tell how far away the scene is; give --extent"):
        usual_extent([view, view])


def test_focus_is_what_the_cameras_look_at():
    for view in add_aperture(ring(), 0.1, None, 7):
        assert view.aperture.focus == pytest.approx(4, rel=1e-5)
        assert (view.aperture.radius, view.aperture.samples) == (0.1, 7)
    assert add_aperture(ring()[:1], 0.1, 2.5, 7)[0].aperture == ThinLens(0.1, 2.5, 7)
    with pytest.raises(GartError, match="give --focus DISTANCE"):
        add_aperture(ring()[:1], 0.1, None, 7)
    with pytest.raises(UsageError, match=r"--samples: thin lens has radius 0.1, focus 1 and 0"):
        add_aperture(ring(), 0.1, 1.0, 0)


def test_rows_are_exposed_on_the_way_to_the_next_frame():
    views = ring(12)
    moving = add_rolling_shutter(views, 1.0)
    for view, following in zip(moving, views[1:], strict=False):
        torch.testing.assert_close(view.shutter.end, following.c2w, rtol=0, atol=1e-5)
    # The last one turns on by as much; its centre goes straight on.
    first = views[0].c2w
    torch.testing.assert_close(moving[-1].shutter.end[:, :3], first[:, :3], rtol=0, atol=1e-5)
    still = add_rolling_shutter(views, 0.0)[3]
    torch.testing.assert_close(still.shutter.end, views[3].c2w, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("views", "fraction", "message"),
    [
        (ring(), 1.5, "--rolling-shutter is 1.5; expected a fraction from 0 to 1"),
        (ring()[:1], 0.5, "takes the motion between frames; give two at least"),
        (ring(2), 0.5, "--rolling-shutter: half a turn lies between two poses"),
    ],
)
def test_what_has_no_motion(views, fraction, message):
    with pytest.raises(UsageError, match=message):
        add_rolling_shutter(views, fraction)


def test_other_fields_stay():
    view = replace(camera(pose=random_pose(1, 2)), model="opencv", distortion=(0.1, 0, 0, 0))
    views = [view, replace(view, c2w=random_pose(2, 2))]
    assert add_rolling_shutter(add_aperture(views, 0.1, 1.0, 3), 0.5)[0].lens == view.lens
