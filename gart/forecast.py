"""How many bytes an image or a training run will take, before it does.

Every term is a formula over sizes that are known beforehand, counted in the code it names; only how
many Gaussians a pixel meets is not known, and stands in `Load` (docs/memory.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gart.memory import MARGIN, format_size

FLOAT = 4
TILE_PIXELS = 64
LIST_ROOM, LIST_LEAST = 1.25, 2**20
"""Places that the GPU allocates for tile lists: more than recent images needed, and at least."""
HIT_BYTES, HIT_LEAST = 6.9, 641
"""Bytes of the GPU's hit storage (csrc/cuda/hit_storage.cu): 4 a hit, in chunks of 16 rows of 32
pixels of which a quarter stays empty, with a quarter to spare; and a pixel's in first images."""
BLOCK_ROWS = 64
"""Pixel rows of a block of 8 x 8 tiles: strips are cut between blocks (gart/tracing/strips.py)."""


@dataclass(frozen=True)
class Load:
    """How many Gaussians a pixel meets: known only once an image has been traced.

    Attributes:
        hits: blended Gaussians a pixel. Measured: 38 to 72 in synthetic rooms and trained scenes.
        entries: entries of tile lists a pixel, 1/64 of a list's length. Measured: 2.4 to 8.
    """

    hits: float = 64.0
    entries: float = 5.0

    def covering(self, entries: float, hits: float, on_gpu: bool) -> Load:
        """At least this load, and enough for an image for whose pixels so much was allocated.

        Args:
            entries: places in tile lists a pixel.
            hits: 4-byte words of hits a pixel.
            on_gpu: whose allocations have room to spare.
        """
        if on_gpu:
            entries, hits = entries / LIST_ROOM, FLOAT * hits / HIT_BYTES
        if entries <= self.entries and hits <= self.hits:
            return self
        return Load(max(self.hits, 1.1 * hits), max(self.entries, 1.1 * entries))


@dataclass(frozen=True)
class Tracing:
    """One image's tracing: its sizes, and from them the bytes of its parts.

    Cutting the image into strips makes those parts smaller that grow with the pixels (`strips`: how
    many); those that grow with the Gaussians stay.

    Attributes:
        gaussians, coefficients: N and K of the scene.
        width, height: of the image in pixels.
        faces: planes that the lens needs, 1, or 6 for a fisheye or panorama (ray_grid.py).
        on_gpu: CUDA or the CPU.
        sh, backward, lt_layout: as in `TraceSettings`.
        load: expected, or measured.
    """

    gaussians: int
    coefficients: int
    width: int
    height: int
    faces: int = 1
    on_gpu: bool = False
    sh: str = "ray"
    backward: str = "primitive"
    lt_layout: str = "hits"
    load: Load = Load()

    @property
    def pixels(self) -> int:
        """Pixels of the image."""
        return self.width * self.height

    @property
    def blocks(self) -> int:
        """Rows of blocks: the most strips that the image can be cut into."""
        return -(-self.height // BLOCK_ROWS)

    @property
    def scene(self) -> int:
        """Means, quaternions, log scales, opacity logits and SH, or their gradients."""
        return FLOAT * (11 + 3 * self.coefficients) * self.gaussians

    def rows(self, strips: int) -> int:
        """Pixel rows of the tallest of `strips`."""
        return min(-(-self.blocks // strips) * BLOCK_ROWS, self.height)

    def strips(self, limit: float, keep_hits: bool) -> int:
        """Fewest strips that need no more than `limit` bytes, or those that need least."""
        return fewest(lambda strips: self.needed(strips, keep_hits), self.blocks, limit)

    def needed(self, strips: int, keep_hits: bool) -> float:
        """Most bytes at once from the forward to the end of the backward pass, or (without
        `keep_hits`) in a forward pass alone; the scene not counted.
        """
        if not keep_hits:
            return self.forward(strips, keep_hits=False)
        return max(self.forward(strips, keep_hits=strips == 1), self.backward_pass(strips))

    def forward(self, strips: int, keep_hits: bool) -> float:
        """Most bytes at once in a forward pass, the scene not counted."""
        hits = self._lt_buffer(strips) + self._hits_growing(strips) if keep_hits else 0.0
        return self._records_made + self._lists(strips) + hits + self._images

    def kept(self, strips: int) -> float:
        """Bytes from the forward to the backward pass. Strips keep nothing: they trace again."""
        if strips > 1:
            return self._images
        hits = self._lt_buffer(1) + self._hits_growing(1)
        return self._records_kept + self._lists_kept(1) + hits + self._images

    def backward_pass(self, strips: int) -> float:
        """Most bytes at once in a backward pass, with what was `kept`, the scene not counted."""
        gradients = self.scene * (1 if strips == 1 else 2)  # of this strip, and of those before it
        state = self._records_kept + self._lists_kept(strips) + self._lt_buffer(strips)
        # Pair sums take the place that growing hits have left.
        sums = self._record_sums + max(self._pair_sums(strips), self._hits_growing(strips))
        again = 0.0 if strips == 1 else self.forward(strips, keep_hits=True) + self.scene
        return self._images + max(state + sums + gradients, again)

    # Shares and counts.

    def _share(self, strips: int) -> float:
        return self.rows(strips) / self.height

    def _entries(self, strips: int) -> float:
        """Entries of all tile lists; every Gaussian that is in view has one at least."""
        entries = max(self.load.entries * self.pixels, self.gaussians)
        return min(entries, self.gaussians * self.pixels / TILE_PIXELS) * self._share(strips)

    def _hits(self, strips: int) -> float:
        return min(self.load.hits, self.gaussians) * self.pixels * self._share(strips)

    @property
    def _records(self) -> float:
        """Gaussians seen in a face. The GPU has room for all in all faces; on the CPU only those in
        front of a face have a record: all for one face, half of them in each of six.
        """
        if self.on_gpu or self.faces == 1:
            return self.gaussians * self.faces
        return self.gaussians * self.faces / 2

    # What grows with the Gaussians.

    @property
    def _records_kept(self) -> float:
        """csrc/cuda/trace_forward.cu: RayRecord 48 B, and colour 16 B with sh=center.
        csrc/cpu/trace_forward.cpp: RayRecord 48 B, Gaussian 4 B. linear_color.py: 48 B.
        """
        linear = 48 * self.gaussians if self.sh == "linear" else 0
        if not self.on_gpu:
            return 52 * self._records + linear
        return (64 if self.sh == "center" else 48) * self._records + linear

    @property
    def _records_made(self) -> float:
        """While they are made. CUDA: RecordSpan, 28 B more. CPU (tile_lists.cpp): with RecordBounds
        128 B, joined from parts into vectors that double; 230 B measured.
        """
        return self._records_kept + 28 * self._records if self.on_gpu else 230 * self._records

    @property
    def _record_sums(self) -> float:
        """10 moments and 48 colour sums, 3 with sh=center (csrc/cpu/trace_backward.cpp, which also
        indexes them; csrc/cuda/trace_backward.cuh pads them to 60 and 16).
        """
        sums = 13 if self.sh == "center" else 58
        if self.on_gpu:
            return FLOAT * (16 if self.sh == "center" else 60) * self._records
        return (FLOAT * sums + 16) * self._records

    @property
    def _images(self) -> float:
        """Colour, opacity, blended depth and depth, and the GPU's list of pixels to redo."""
        return (28 if self.on_gpu else 24) * self.pixels

    # What grows with the pixels.

    def _lists(self, strips: int) -> float:
        """While tile lists are made. CUDA: 20 B a candidate, two of which become an entry, and 20 B
        an entry. CPU: 10 B measured.
        """
        entries = self._entries(strips)
        if self.on_gpu:
            listed = max(LIST_ROOM * entries, LIST_LEAST)
            return 2 * 20 * listed + 20 * listed
        return 10 * entries

    def _lists_kept(self, strips: int) -> float:
        """Until the backward pass. CUDA: record 4 B and bound 4 B an entry. CPU: record 4 B."""
        entries = self._entries(strips)
        return 8 * max(LIST_ROOM * entries, LIST_LEAST) if self.on_gpu else 4 * entries

    def _lt_buffer(self, strips: int) -> float:
        """The hits. CUDA: `HIT_BYTES`, and 10 B a pixel. CPU: 4 B a hit and a pixel. Beside them
        the papers' layout has 3.3 to 5.9 box pixels a hit.
        """
        hits, pixels = self._hits(strips), self.pixels * self._share(strips)
        if self.on_gpu:
            size = max(HIT_BYTES * hits, HIT_LEAST * pixels) + 10 * pixels
        else:
            size = 4 * (hits + pixels)
        if self.lt_layout == "aabb":
            size += FLOAT * {"primitive": 4, "hybrid": 1, "pixel": 0}[self.backward] * 5 * hits
        return size

    def _hits_growing(self, strips: int) -> float:
        """CPU: each tile's own vector, which doubles; the heap keeps it until the backward pass."""
        return 0.0 if self.on_gpu else 4.3 * self._hits(strips)

    def _pair_sums(self, strips: int) -> float:
        """CPU: every (Gaussian, tile) pair with a blended hit has sums of its own, in vectors that
        double (csrc/cpu/trace_backward.cpp). Such a pair has 38 hits on average.
        """
        if self.on_gpu or self.backward == "pixel" or self.lt_layout == "aabb":
            return 0.0
        pairs = min(self._hits(strips) / 38, self._entries(strips))
        return (12 + 1.2 * FLOAT * (13 if self.sh == "center" else 58)) * pairs


@dataclass(frozen=True)
class Training:
    """A training run at its budget.

    Attributes:
        tracing: of the largest photograph, with as many Gaussians as the budget allows.
        photographs: bytes of photographs, masks and ray grids that the run puts on the device.
    """

    tracing: Tracing
    photographs: int = 0

    def needed(self, strips: int = 1) -> int:
        """Most bytes at once: the largest of `phases`."""
        return int(max(self.phases(strips).values()))

    def phases(self, strips: int = 1) -> dict[str, float]:
        """Bytes in each phase of an iteration (gart/training/trainer.py), and of a checkpoint."""
        t = self.tracing
        # The scene, Adam's two moments, the 3D filter's sizes.
        resident = 3 * t.scene + FLOAT * t.gaussians + self.photographs
        resident += 0 if t.on_gpu else RUNTIME
        # Log scales and logits of the filtered scene (gart/training/filter3d.py).
        smoothed = 16 * t.gaussians
        return {
            "forward pass": resident + smoothed + t.forward(strips, keep_hits=strips == 1),
            "loss": resident + smoothed + t.kept(strips) + LOSS * t.pixels,
            "backward pass": resident + smoothed + LOSS_KEPT * t.pixels + t.backward_pass(strips),
            # Gradients; the sums by which 5 % copies share opacity, then the scene that grew.
            "densification": resident + t.scene + max(t.scene, 100 * t.gaussians),
            # On the CPU; from a GPU, it is written by way of RAM.
            "checkpoint": resident + (0 if t.on_gpu else 3 * t.scene + FLOAT * t.gaussians),
        }

    def for_tracing(self, limit: int) -> int:
        """What is left of `limit` bytes for tracing an image, beside what stands all the while."""
        alone = self.phases(self.tracing.blocks)["backward pass"]
        beside = alone - self.tracing.backward_pass(self.tracing.blocks)
        return max(int(limit - beside), 0)

    def largest_budget(self, limit: float) -> int:
        """Most Gaussians that fit into `limit` bytes, rounded down to two digits; 0 where not even
        the photographs fit.
        """
        low, high = 0, self.tracing.gaussians
        while high - low > 1:
            middle = (low + high) // 2
            smaller = replace(self, tracing=replace(self.tracing, gaussians=middle))
            strips = fewest(smaller.needed, self.tracing.blocks, limit)
            if smaller.needed(strips) <= limit:
                low = middle
            else:
                high = middle
        digits = max(len(str(low)) - 2, 0)
        return low // 10**digits * 10**digits


LOSS, LOSS_KEPT = 64, 28
"""Bytes a pixel of the loss: SSIM's derivatives 36, gradients 16, and depth with what its gradient
would need 12; those but the derivatives stay for the backward pass (csrc/*/training)."""
RUNTIME = 18_000_000
"""What PyTorch's libraries take once they have worked, on the CPU; measured."""


def fewest(needed: Callable[[int], float], blocks: int, limit: float) -> int:
    """Least of up to `blocks` strips whose `needed` bytes are within `limit`; where none are, the
    number that needs least.
    """
    counts = range(1, blocks + 1)
    return next((n for n in counts if needed(n) <= limit), None) or min(counts, key=needed)


@dataclass(frozen=True)
class Plan:
    """A forecast beside what there is.

    Attributes:
        needed: bytes, with images in `strips`.
        available: bytes that are free, or allowed.
        usable: bytes of them that the forecast is held to.
        strips: how many strips the largest image is traced in.
    """

    needed: int
    available: int
    usable: int
    strips: int

    @classmethod
    def of(cls, needed: Callable[[int], float], blocks: int, free: int, allowed: int = 0) -> Plan:
        """With the `fewest` strips, within `free` bytes less a margin and, unless 0, `allowed`."""
        usable = min(int(MARGIN * free), allowed or free)
        strips = fewest(needed, blocks, usable)
        return cls(int(needed(strips)), min(free, allowed or free), usable, strips)

    @property
    def fits(self) -> bool:
        """Whether it can be done."""
        return self.needed <= self.usable

    def __str__(self) -> str:
        strips = f", images in {self.strips} strips" if self.strips > 1 else ""
        return f"needs about {format_size(self.needed)} of {format_size(self.available)}{strips}"
