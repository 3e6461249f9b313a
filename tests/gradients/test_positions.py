"""Groups of positions: which there are, and which position of each is measured."""

import torch

from slu.gradients.positions import MOST_GROUPS, Grid, at_middles, at_tiles, tiling


def test_groups_of_tokens_do_not_depend_on_padding():
    counted = torch.arange(150) < torch.tensor([150, 70, 3])[:, None]
    grid = Grid((150,), 2, 3, counted)
    longer = Grid((200,), 2, 3, torch.cat([counted, torch.zeros(3, 50, dtype=torch.bool)], 1))
    assert torch.equal(longer.groups[:, :150], grid.groups) and bool((longer.groups[:, 150:] == -1).all())
    assert grid.groups[0, :4].tolist() == [0, 0, 0, 1] and grid.groups[2, :4].tolist() == [0, 1, 2, -1]
    assert grid.count <= MOST_GROUPS
    assert grid.middles[0, :2].tolist() == [1, 4] and grid.middles[2, :4].tolist() == [0, 1, 2, -1]
    values = torch.randn(3, 150, 4, dtype=torch.float64)
    picked = at_middles(values, grid)
    torch.testing.assert_close(picked[0, 1], values[0, 4])
    torch.testing.assert_close(picked[2, :3], values[2, :3])


def test_a_picture_is_divided_into_tiles():
    grid = Grid((32, 20), 2, 1, torch.ones(1, 640, dtype=torch.bool))
    rows, columns = tiling((32, 20))
    assert rows * columns <= MOST_GROUPS and grid.count == rows * columns
    tiles = grid.groups.view(32, 20)
    assert len(tiles.unique()) == rows * columns
    assert tiles[0, 0] == 0 and tiles[-1, -1] == rows * columns - 1
    numbers = torch.arange(640.0).view(1, 1, 32, 20)
    picked = at_tiles(numbers, (32, 20))[0, :, 0].long()
    assert torch.equal(tiles.flatten()[picked], torch.arange(rows * columns))
    assert at_tiles(numbers[..., 0], (32, 20)) is None
    small = at_tiles(numbers[:, :, ::16, ::10], (32, 20))  # a layer of lower resolution: the nearest
    assert small.shape == (1, rows * columns, 1)


def test_targets_change_no_group():
    counted = torch.ones(2, 100, dtype=torch.bool)
    grid = Grid((100,), 2, 2, counted)
    targets = torch.zeros(2, 100, dtype=torch.long)
    targets[:, ::3] = -100
    asked = grid.with_targets(targets)
    assert torch.equal(asked.groups, grid.groups) and torch.equal(asked.middles, grid.middles)
    assert int(asked.counted.sum()) < int(grid.counted.sum())


def test_the_middle_of_a_tile_is_where_layers_are_read():
    grid = Grid((64, 64), 3, 1, torch.ones(1, 4096, dtype=torch.bool))
    assert grid.middles[0, :2].tolist() == [4 * 64 + 4, 4 * 64 + 12]
