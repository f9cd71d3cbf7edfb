"""What this machine's OpenCV was built with."""

import re

import cv2
import pytest

needs_exr = pytest.mark.skipif(
    not re.search(r"OpenEXR: +(?!NO)", cv2.getBuildInformation()),
    reason="this OpenCV is built without OpenEXR",
)
