"""Points held out by content: the same whatever the order and the batches, copies of a point each for itself."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from slu.data import Batch, HoldOut, Reservoir, batches, collected, known_points
from slu.data.fingerprint import example_keys, uniforms
from slu.data.holdout import _Choice

CPU = torch.device("cpu")


def points(count, seed=0):
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))


def counted(inputs):
    return len(inputs["x"] if isinstance(inputs, dict) else inputs)


def hold_out(loader, share=0.1, most=1000, least=0, seed=0, left=None):
    return HoldOut(loader, Reservoir(1.0, most, share, least), seed, counted, left)


def both_sides(data):
    """Rows left in the data and rows held out, each sorted by the first column."""
    out = torch.cat([batch.inputs for batch in batches(data, CPU)])
    held = [inputs for inputs, _ in data.reservoir.batches()]
    held = torch.cat(held) if held else out[:0]
    return out[out[:, 0].argsort()], held[held[:, 0].argsort()]


def draws(inputs, seed=0):
    return uniforms(example_keys(inputs, len(inputs)), 1, seed, "calibration")[:, 0]


@pytest.mark.parametrize("most", [1000, 25, 1])
def test_held_out_are_the_points_with_the_smallest_numbers(most):
    inputs = points(500)
    out, held = both_sides(hold_out(inputs, most=most))
    actual = draws(inputs)
    smallest = actual.argsort()[: min(most, int((actual < 0.1).sum()))]
    expected = inputs[smallest]
    assert torch.equal(held, expected[expected[:, 0].argsort()])
    assert torch.equal(torch.cat([out, held])[:, 0].sort().values, inputs[:, 0].sort().values)


@pytest.mark.parametrize("most", [1000, 25])
def test_order_and_batches_do_not_matter(most):
    inputs = points(400)
    shuffled = inputs[torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    one = both_sides(hold_out(inputs, most=most))
    for loader in (list(inputs.split(7)), list(inputs.split(1)), list(shuffled.split(64)), shuffled):
        for mine, theirs in zip(one, both_sides(hold_out(loader, most=most)), strict=True):
            assert torch.equal(mine, theirs)
    assert not torch.equal(one[1], both_sides(hold_out(inputs, most=most, seed=1))[1])


def test_every_pass_is_the_same_batch_by_batch():
    """Also those into which points go back: what goes on from a checkpoint depends on it."""
    data = hold_out(list(points(300).split(8)), most=5)
    first, second = ([batch.inputs for batch in batches(data, CPU)] for _ in range(2))
    assert len(first) == len(second) > 38
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_about_the_share_and_no_more_than_the_most():
    """100 ± 5 standard deviations of a binomial, for five seeds; control: another share is outside."""
    inputs = points(1000)
    for seed in range(5):
        assert 55 < len(both_sides(hold_out(inputs, seed=seed))[1]) < 145
        assert len(both_sides(hold_out(inputs, most=40, seed=seed))[1]) == 40
    assert len(both_sides(hold_out(inputs, share=0.3))[1]) > 145


def test_copies_of_a_point_are_held_out_each_for_itself():
    """60 points ten times: of 600 about 240, from nearly all of the 60; by content alone it would be whole tens."""
    inputs = points(60).repeat(10, 1)
    out, held = both_sides(hold_out(inputs, share=0.4))
    counts = torch.tensor([int((held == row).all(1).sum()) for row in points(60)])
    assert counts.sum() == len(held) and len(out) + len(held) == 600
    # 4 ± 1.55 copies of each if they are independent.
    assert 180 < len(held) < 300 and 1.0 < float(counts.double().std()) < 2.2 and int((counts > 0).sum()) > 50
    assert {tuple(row.tolist()) for row in out} & {tuple(row.tolist()) for row in held}
    assert len(both_sides(hold_out(inputs, share=0.4, most=85))[1]) == 85, "a maximum cuts copies like other points"


@pytest.mark.parametrize("most", [1000, 25])
def test_how_often_a_point_is_held_out_depends_on_no_order_and_no_batches(most):
    inputs = points(40).repeat_interleave(torch.arange(40) % 7 + 1, 0)
    shuffled = inputs[torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))]
    one = both_sides(hold_out(inputs, share=0.3, most=most))
    for loader in (list(inputs.split(7)), list(shuffled.split(1)), list(shuffled.split(64)), shuffled):
        for mine, theirs in zip(one, both_sides(hold_out(loader, share=0.3, most=most)), strict=True):
            assert torch.equal(mine, theirs)


def test_points_that_are_all_alike_are_points_like_others():
    inputs = points(1).repeat(300, 1)
    for seed in range(4):
        out, held = both_sides(hold_out(list(inputs.split(50)), share=0.5, seed=seed, left=lambda seen: seen // 2))
        assert len(out) + len(held) == 300 and 110 < len(held) <= 150


def test_where_nothing_must_be_left_nothing_goes_back_for_being_few():
    """A fit that goes on may get a single point, which belongs among those held out or not."""
    inputs = points(40)
    for place, draw in enumerate(draws(inputs).tolist()):
        data = hold_out(inputs[place : place + 1], share=0.5)
        left = sum(len(batch.inputs) for batch in batches(data, CPU))
        assert (left, len(data.reservoir)) == ((0, 1) if draw < 0.5 else (1, 0))
        assert data.reservoir.threshold == 0.5


def test_batches_of_kept_points_are_no_larger_than_those_they_came_in():
    data = hold_out(list(points(300).split(7)), share=0.4, most=60)
    assert max(len(batch.inputs) for batch in batches(data, CPU)) == 7
    assert [len(inputs) for inputs, _ in data.reservoir.batches()] == [*[7] * 8, 4]


def test_what_must_be_left_is_known_at_the_end():
    """Then the threshold is 0: every point was fitted, and none may be held out of a fit that goes on."""
    inputs = points(50)
    data = hold_out(list(inputs.split(6)), share=0.4, left=lambda seen: seen)
    out, held = both_sides(data)
    assert len(out) == 50 and not len(held) and data.reservoir.threshold == 0
    assert len(both_sides(hold_out(list(inputs.split(6)), share=0.4, left=lambda seen: seen - 3))[1]) == 3


@pytest.mark.parametrize("size", [1, 7, 50, 400])
def test_the_least_are_held_out_of_few_points_and_no_more_of_many(size):
    for count, expected in ((20, 19), (40, 19), (120, 19)):
        data = hold_out(list(points(count).split(size)), least=19)
        assert len(both_sides(data)[1]) == expected
    inputs = points(400)
    below = int((draws(inputs) < 0.1).sum())
    data = hold_out(list(inputs.split(size)), least=19)
    assert len(both_sides(data)[1]) == below > 19 and data.reservoir.threshold == 0.1


def test_points_kept_elsewhere_count_once():
    """A fit that goes on: with ten points of before, of which five come again, ten more make up the least."""
    inputs = points(100)
    numbers = draws(inputs).sort().values.tolist()
    data = HoldOut(inputs, Reservoir(1.0, 1000, 0.01, 20, numbers[:5] + [1e-9 * k for k in range(1, 6)]), 0, counted)
    assert len(both_sides(data)[1]) == 15
    assert data.reservoir.threshold > numbers[14]


def test_dicts_targets_and_what_a_batch_shares():
    """Batches of 4 beside a shared tensor of 9 rows, which must stay whole, and targets, which follow."""
    inputs, shared = points(80), torch.arange(9.0)
    loader = [({"shared": shared, "x": part}, part.sum(1)) for part in inputs.split(4)]
    data = hold_out(loader, share=0.3, most=12)
    seen = []
    for batch in batches(data, CPU):
        assert torch.equal(batch.inputs["shared"], shared)
        assert torch.equal(batch.targets, batch.inputs["x"].sum(1))
        seen.append(batch.inputs["x"])
    held = [tree["x"] for tree, _ in data.reservoir.batches()]
    assert sum(map(len, held)) == 12
    assert torch.equal(torch.cat([*seen, *held])[:, 0].sort().values, inputs[:, 0].sort().values)


def test_points_of_several_lengths_go_back_in_their_own_batches():
    loader = [torch.randn(6, length, generator=torch.Generator().manual_seed(length)) for length in range(2, 30)]
    data = hold_out(loader, share=0.5, most=3)
    assert sum(len(batch.inputs) for batch in batches(data, CPU)) == 28 * 6 - 3


def test_data_without_points_of_their_own_stay_as_they_are():
    loader = [{"x": points(5)} for _ in range(3)]
    data = HoldOut(loader, Reservoir(1.0, 10, 0.9), 0, lambda inputs: 7)
    assert [len(batch.inputs["x"]) for batch in batches(data, CPU)] == [5, 5, 5] and not len(data.reservoir)


def test_collected_and_joined():
    inputs = points(300)
    whole = collected(list(inputs.split(9)), Reservoir(float("inf"), 40), 0, counted, CPU)
    assert len(whole) == 40 and whole.threshold == pytest.approx(float(draws(inputs).sort().values[40]), abs=0)
    parts = [collected(part, Reservoir(0.3, 1000), 0, counted, CPU) for part in inputs.split(150)]
    both = parts[0].joined(parts[1], once=True)
    assert len(both) == len(parts[0]) + len(parts[1]) == int((draws(inputs) < 0.3).sum())
    assert len(both.joined(parts[0], once=True)) == len(both), "points of both count once"
    assert len(both.joined(parts[0], once=False)) == len(both) + len(parts[0]), "unless they are two"
    lower = both.joined(Reservoir(0.1, 1000), once=True)
    assert lower.threshold == 0.1 and len(lower) == int((draws(inputs) < 0.1).sum())


@pytest.mark.parametrize("size", [1, 7, 300, 900])
def test_collected_by_their_numbers_are_these_and_no_others(size):
    inputs = points(300)
    only = draws(inputs)[:90].tolist()
    repeated = torch.cat([inputs, inputs.flip(0), inputs])
    some = collected(list(repeated.split(size)), Reservoir(0.3, 1000), 0, counted, CPU, only=only)
    assert some.numbers == sorted(u for u in only if u < 0.3)
    few = collected(list(repeated.split(size)), Reservoir(1.0, 20), 0, counted, CPU, only=only)
    assert few.numbers == sorted(only)[:20], "others do not count among the most there may be"
    whole = [{"x": points(5)}, *({"x": part} for part in repeated.split(7))]
    odd = collected(whole, Reservoir(0.3, 1000), 0, lambda inputs: 7, CPU, only=only)
    assert set(odd.numbers) <= set(some.numbers), "what cannot be divided into points is passed over"


def reservoir_of(loader, count):
    data = HoldOut(loader, Reservoir(1.0, 1000, 0.5), 0, count)
    for _ in batches(data, CPU):
        pass
    return data.reservoir


def held_pairs(loader):
    """Tokens that count in the mask, and targets of them, of the points that are held out."""
    found = []
    for inputs, targets in reservoir_of(loader, lambda inputs: len(inputs["tokens"])).batches():
        masks = inputs.get("attention_mask", inputs["tokens"] != 0).bool()
        for tokens, mask, target in zip(inputs["tokens"], masks, targets, strict=True):
            found.append((tuple(tokens[mask].tolist()), tuple(target[mask].tolist())))
    return sorted(found)


def drawn_tokens(count, copies):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 9, (count, 5), generator=generator).repeat(copies, 1)


@pytest.mark.parametrize("masked", [False, True])
def test_copies_whose_targets_leave_out_other_positions_are_other_points(masked):
    """Or the order would decide with which of the positions that count an input is held out."""
    tokens, targets = drawn_tokens(60, 4), drawn_tokens(60, 4) % 4
    targets[60:120, :3], targets[120:180, 1] = -100, -100
    if masked:  # at the end only a mask says that these positions are no padding; without, the order decides
        targets[180:, 3:] = -100
    named = {"tokens": tokens} | ({"attention_mask": torch.ones_like(tokens)} if masked else {})
    found = []
    for order in (torch.arange(240), torch.arange(240).flip(0)):
        for size in (7, 240):
            places = order.split(size)
            loader = [({name: each[some] for name, each in named.items()}, targets[some]) for some in places]
            found.append(held_pairs(loader))
    assert all(each == found[0] for each in found) and 60 < len(found[0]) < 180


def test_control_of_copies_with_other_targets_that_count_the_order_decides():
    tokens = drawn_tokens(60, 3)
    targets = torch.randint(0, 4, (180, 5), generator=torch.Generator().manual_seed(1))
    one, two = held_pairs([({"tokens": tokens}, targets)]), held_pairs([({"tokens": tokens.flip(0)}, targets.flip(0))])
    assert one != two and [each for each, _ in one] == [each for each, _ in two]


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "left", "right"])
def test_targets_of_padding_change_no_number(padding, gaps):
    """At the end where inputs have no mask, on either side where they have one; with other gaps in every batch."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(1, 99, (length,), generator=generator) for length in torch.randint(2, 9, (100,)).tolist()]
    found = []
    for size in (1, 10, 100):
        loader = []
        for start in range(0, 100, size):
            some = rows[start : start + size]
            width = max(map(len, some))
            tokens, targets = torch.zeros(len(some), width, dtype=torch.int64), torch.full((len(some), width), -100)
            mask = torch.zeros_like(tokens)
            for place, row in enumerate(some):
                at = slice(width - len(row), width) if padding == "left" else slice(len(row))
                tokens[place, at], mask[place, at] = row, 1
                targets[place, at] = torch.where(row % 3 == 0, -100, row) if gaps else row
            named = {"tokens": tokens} if padding == "zeros" else {"tokens": tokens, "attention_mask": mask}
            loader.append((named, targets))
        found.append(held_pairs(loader))
        if not gaps:
            without = held_pairs([(named, torch.zeros_like(targets)) for named, targets in loader])
            assert [tokens for tokens, _ in without] == [tokens for tokens, _ in found[0]], "nor do targets"
    assert all(each == found[0] for each in found) and 25 < len(found[0]) < 75


@pytest.mark.parametrize("padding", ["zeros", "left", "right"])
def test_targets_of_several_numbers_per_position_change_no_number_where_they_are_padding(padding):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(1, 99, (length,), generator=generator) for length in torch.randint(2, 9, (60,)).tolist()]
    found = []
    for size in (1, 10):
        loader = []
        for start in range(0, 60, size):
            some = rows[start : start + size]
            width = max(map(len, some))
            tokens, targets = torch.zeros(len(some), width, dtype=torch.int64), torch.full((len(some), width, 3), -100)
            for place, row in enumerate(some):
                at = slice(width - len(row), width) if padding == "left" else slice(len(row))
                tokens[place, at], targets[place, at] = row, row[:, None]
            named = {"tokens": tokens} if padding == "zeros" else {"tokens": tokens, "attention_mask": tokens > 0}
            loader.append((named, targets))
        held = reservoir_of(loader, lambda inputs: len(inputs["tokens"])).numbers
        found.append(held)
    assert found[0] == found[1] and 15 < len(found[0]) < 45


def test_numbers_that_are_left_out_of_the_last_position_make_other_points():
    """There padding is left out whole."""
    targets = torch.full((3, 5, 3), 4)
    targets[1, 4, 2], targets[2, 4] = -100, -100
    whole, part, padded = (
        float(_Choice(0, targets=False)(Batch(0, drawn_tokens(1, 1), each[None]), 1)) for each in targets
    )
    assert whole == padded != part


def test_a_mask_of_other_positions_than_those_of_the_targets_says_nothing_of_these():
    """Targets of a decoder are padded to any length, which the mask of the encoder does not know."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 99, (60, 5), generator=generator)
    targets = torch.randint(0, 9, (60, 4), generator=generator)
    targets[::2, 2:], targets[1::3, 0] = -100, -100
    found = []
    for wide in (0, 2, 5):  # positions of padding
        padded = torch.cat([targets, torch.full((60, wide), -100)], 1)
        named = {"tokens": tokens, "attention_mask": torch.ones_like(tokens)}
        found.append(reservoir_of([(named, padded)], lambda inputs: len(inputs["tokens"])).numbers)
    assert found[0] == found[1] == found[2] and 15 < len(found[0]) < 45


def test_pixels_that_targets_leave_out_make_other_points():
    images = torch.randn(50, 1, 4, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1, 1, 1)
    targets = torch.zeros(100, 4, 4, dtype=torch.int64)
    targets[50:, 3, 3] = -100
    found = []
    for order in (torch.arange(100), torch.arange(100).flip(0)):
        held = reservoir_of([(images[order], targets[order])], len).batches()
        found.append(sorted((float(x.flatten()[0]), int(y.sum())) for pair in held for x, y in zip(*pair, strict=True)))
    assert found[0] == found[1] and 25 < len(found[0]) < 75


class Endless(IterableDataset):
    def __iter__(self):
        return iter(points(10))


def test_how_many_points_there_are_where_it_can_be_told():
    inputs = points(10)
    assert known_points(inputs) == known_points((inputs, inputs[:, 0])) == known_points({"x": inputs}) == 10
    assert known_points(list(inputs.split(3))) == known_points([(part, part[:, 0]) for part in inputs.split(3)]) == 10
    data = TensorDataset(inputs)
    assert known_points(DataLoader(data, 3)) == 10
    assert known_points(DataLoader(data, 3, drop_last=True, shuffle=True)) == 9
    assert known_points(DataLoader(Endless(), 3)) is None and known_points(iter([inputs])) is None
