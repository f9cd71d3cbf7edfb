import torch

from gart.cameras import Camera
from gart.native import constants
from gart.tracing.ray_grid import ray_grid


def test_a_block_is_the_rectangle_of_its_tiles():
    tile, edge = int(constants()["trace_tile"]), int(constants()["block_tiles"])
    columns, rows = edge + 3, 2 * edge + 1  # the last blocks are cut off
    camera = Camera(torch.eye(3, 4), 90, 90, 40, 60, columns * tile, rows * tile)
    grid = ray_grid(camera, "cpu")
    tiles = grid.tile_rect.reshape(rows, columns, 4)
    expected = []
    for y in range(0, rows, edge):
        for x in range(0, columns, edge):
            x0, x1, y0, y1 = tiles[y : y + edge, x : x + edge].reshape(-1, 4).T
            expected.append(torch.stack([x0.min(), x1.max(), y0.min(), y1.max()]))
    assert torch.equal(grid.block_rect, torch.stack(expected))
