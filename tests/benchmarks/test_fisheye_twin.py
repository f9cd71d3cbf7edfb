"""The part of a twin's photographs that the fisheye sees."""

from dataclasses import replace

import torch
from fisheye_twin import images, in_field

from gart.cameras import Camera
from gart.capture import Capture, View


def test_a_twin_in_the_fisheyes_field_is_masked_to_what_the_fisheye_images():
    turned = torch.tensor([[0.0, 0, 1, 3], [0, 1, 0, 2], [-1, 0, 0, 1]])
    wide = Camera(turned, 10.0, 10.0, 8.0, 6.0, 16, 12)
    # Of the pixels 0.5 to 15.5 and 0.5 to 11.5, half as many each way, at the same focal length.
    narrow = replace(wide, cx=4.0, cy=3.0, width=8, height=6)
    expected = torch.zeros(12, 16, dtype=torch.bool)
    expected[3:9, 4:12] = True
    assert torch.equal(images(wide, narrow), expected)
    assert images(narrow, wide).all()

    own = torch.ones(12, 16, dtype=torch.bool)
    own[4] = False
    photo = torch.zeros(12, 16, 3, dtype=torch.uint8)
    nothing = torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.uint8)
    twin = Capture("twin", [View("a", wide, photo), View("b", wide, photo, own)], [], *nothing)
    cut = photo[:6, :8]
    fisheye = Capture("fisheye", [View("b", narrow, cut), View("a", narrow, cut)], [], *nothing)
    a, b = in_field(twin, fisheye).train
    assert torch.equal(a.mask, expected)
    assert torch.equal(b.mask, expected & own)
