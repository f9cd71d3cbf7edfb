import os
import re
from html.parser import HTMLParser

import pytest
import torch

from gart.evaluation.report import Report, error_image
from gart.evaluation.table import Row, Table
from gart.io.images import read_image


class Page(HTMLParser):
    """Collects tags, and what they link to."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def images():
    photo = torch.full((6, 8, 3), 100, dtype=torch.uint8)
    image = photo.clone()
    image[0, 0] += 32
    image[0, 1, 0] = 255
    return image, photo


def test_error_colours_grow_with_the_error(images):
    image, photo = images
    mask = torch.ones(6, 8, dtype=torch.bool)
    mask[5] = False
    error = error_image(image, photo, mask)
    assert (error.dtype, error.shape) == (torch.uint8, (6, 8, 3))
    assert error[2, 2].sum() < 10  # equal: almost black
    assert error[5].unique().tolist() == [128]
    brightness = error.int().sum(-1)
    assert brightness[2, 2] < brightness[0, 0] < brightness[0, 1]
    full = error_image(photo + 64, photo)
    assert torch.equal(full, error_image(photo + 155, photo))  # the scale ends there


def test_report_is_one_folder_that_stands_alone(images, tmp_path):
    image, photo = images
    report = Report(tmp_path / "report")
    first = report.section("runs/<a> & b, rt")
    first({"name": "left/a #1 <x>.jpg", "psnr": 21.5, "ssim": 0.75, "lpips": None}, *images, None)
    report.section("second")({"name": "b.png", "psnr": float("inf")}, photo, photo, None)
    rows = [Row("mipnerf360", "garden", "gart rt", psnr=21.5, protocol="3dgs")]
    path = report.write(Table(rows), ["tilegs against rt: psnr -1.00 dB"])
    text = path.read_text()
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert page.tags.count("img") == 6
    assert not re.search(r"https?:|//[a-z]|url\(", text)
    for link in page.links:
        assert (tmp_path / "report" / link).is_file()
    assert torch.equal(read_image(tmp_path / "report/00/0000.photograph.png"), photo)
    assert torch.equal(read_image(tmp_path / "report/00/0000.rendering.png"), image)
    assert "left/a #1 &lt;x&gt;.jpg <small>21.50 dB, SSIM 0.7500</small>" in text
    assert "<h2>runs/&lt;a&gt; &amp; b, rt</h2>" in text
    assert "tilegs against rt: psnr -1.00 dB" in text
    assert text.count('<tr class="published">') == 4


def test_names_of_any_bytes(tmp_path, images):
    name = os.fsdecode(b"\xff.png")
    report = Report(tmp_path)
    report.section(name)({"name": name, "psnr": 20.0}, *images, None)
    text = report.write(Table([Row("", name, "gart rt")])).read_text()
    assert text.count(r"\udcff.png") == 3
