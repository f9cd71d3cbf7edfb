"""Tests marked `cuda` run where there is a GPU and the CUDA library, and are skipped elsewhere."""

import pytest
import torch

from gart.native import library_path


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available() and library_path("cuda") is not None:
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU and gart's CUDA library")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
