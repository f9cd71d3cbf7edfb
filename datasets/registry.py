"""What can be downloaded: from where, how large, under which licence. Imports nothing heavy.

Sizes are what the servers sent when this was written, and None where that was not recorded; the
server's own answer counts in a download. Checksums come from the server's answer too, where it
gives one; every member of a zip archive has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

_INRIA = "https://repo-sam.inria.fr/fungraph/3d-gaussian-splatting/datasets/input/tandt_db.zip"
_MIPNERF360 = "https://storage.googleapis.com/gresearch/refraw360"
_NERFBASELINES = "https://huggingface.co/datasets/nerfbaselines/nerfbaselines-data/resolve/main"
_TORCHVISION = "https://download.pytorch.org/models"

MIPNERF360_SCALES = {
    **dict.fromkeys(("bicycle", "flowers", "garden", "stump", "treehill"), 4),
    **dict.fromkeys(("bonsai", "counter", "kitchen", "room"), 2),
}
"""Scene -> how many times smaller than the camera's its photographs are in published tables."""


@dataclass(frozen=True)
class Archive:
    """One file on a server.

    Attributes:
        url: its address.
        kind: how it is packed.
        size: bytes, or None where not known.
        sha256: its first hexadecimal digits, or "" where not known.
    """

    url: str
    kind: Literal["zip", "tar.gz", "file"]
    size: int | None = None
    sha256: str = ""

    @property
    def name(self) -> str:
        """File name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSet:
    """A published set of scenes.

    Attributes:
        title: what it is called in papers.
        listed: names of its scenes, between spaces.
        photographs: which of its photographs are used.
        licence: what its authors allow, or where they say it.
        homepage: the authors' page.
        archive: scene -> where it is.
        prefix: scene -> the folder in the archive that becomes the scene's.
        member: (scene, path in that folder) -> path in the scene's folder, or None to leave it out.
    """

    title: str
    listed: str
    photographs: str
    licence: str
    homepage: str
    archive: Callable[[str], Archive]
    prefix: Callable[[str], str] = lambda scene: f"{scene}/"
    member: Callable[[str, str], str | None] = lambda scene, path: path

    @property
    def scenes(self) -> tuple[str, ...]:
        """Names of its scenes."""
        return tuple(self.listed.split())


def _mipnerf360_archive(scene: str) -> Archive:
    if scene in ("flowers", "treehill"):
        return Archive(f"{_MIPNERF360}/360_extra_scenes.zip", "zip")
    return Archive(f"{_MIPNERF360}/360_v2.zip", "zip", 12_500_000_000)


def _mipnerf360_member(scene: str, path: str) -> str | None:
    """nerfbaselines' layout: the photographs of one size, with a model scaled to it."""
    scale = MIPNERF360_SCALES[scene]
    if path.startswith("sparse/"):
        return f"sparse_{scale}/{path.removeprefix('sparse/')}"
    return path if path.startswith(f"images_{scale}/") else None


DATASETS: Mapping[str, DataSet] = {
    "mipnerf360": DataSet(
        "Mip-NeRF 360",
        "bicycle flowers garden stump treehill bonsai counter kitchen room",
        "images_4 outdoors, images_2 indoors",
        "none stated by its authors",
        "https://jonbarron.info/mipnerf360",
        _mipnerf360_archive,
        member=_mipnerf360_member,
    ),
    "tanksandtemples": DataSet(
        "Tanks and Temples",
        "auditorium ballroom barn caterpillar church courthouse courtroom family francis horse "
        "ignatius lighthouse m60 meetingroom museum palace panther playground temple train truck",
        "half size, undistorted; nerfbaselines' reconstruction",
        "non-commercial research, see https://www.tanksandtemples.org/license",
        "https://www.tanksandtemples.org",
        lambda scene: Archive(f"{_NERFBASELINES}/tanksandtemples/{scene}_2down.tar.gz", "tar.gz"),
    ),
    "deepblending": DataSet(
        "Deep Blending",
        "drjohnson playroom",
        "as in the 3DGS paper",
        "see https://github.com/Phog/DeepBlending",
        "https://repo-sam.inria.fr/fungraph/3d-gaussian-splatting",
        lambda scene: Archive(_INRIA, "zip", 650_000_000),
        prefix=lambda scene: f"db/{scene}/",
    ),
    "blender": DataSet(
        "NeRF-synthetic",
        "chair drums ficus hotdog lego materials mic ship",
        "800 x 800, RGBA; nerfbaselines' copy",
        "Creative Commons, another one for each model",
        "https://www.matthewtancik.com/nerf",
        lambda scene: Archive(f"{_NERFBASELINES}/blender/{scene}.zip", "zip"),
    ),
}
"""Data set -> what it is. No scene name occurs twice, so each stands for itself."""

LPIPS = "lpips"
LPIPS_LICENCE = "BSD-3-Clause (torchvision's code; trained on ImageNet)"
LPIPS_FILES = (
    Archive(f"{_TORCHVISION}/alexnet-owt-7be5be79.pth", "file", 244_000_000, "7be5be79"),
    Archive(f"{_TORCHVISION}/vgg16-397923af.pth", "file", 553_000_000, "397923af"),
)
"""ImageNet classifiers that LPIPS compares activations of; torchvision names each by its hash."""
