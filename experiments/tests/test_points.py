"""Which points methods are fitted on and judged by."""

import torch

from slu.seeds import stream
from slu_experiments.data import Memory, open_set
from slu_experiments.points import Batches, balanced, fit_source, query_source
from slu_experiments.settings import find_setting
from slu_experiments.training import learned_from

DIGITS = find_setting("digits-mlp")


def everything(source):
    return source.read(torch.arange(len(source)))


def test_batches_can_be_read_again_and_again():
    source = Memory(torch.arange(7.0)[:, None], torch.arange(7))
    for hold in (False, True):
        loader = Batches(source, 3, hold=hold)
        assert len(loader) == 3
        for _ in range(2):
            assert [len(inputs) for inputs, _ in loader] == [3, 3, 1]
            assert torch.cat([targets for _, targets in loader]).tolist() == list(range(7))


def test_images_with_their_channels_innermost_are_the_same_images():
    source = Memory(torch.arange(2.0 * 3 * 4 * 4).view(2, 3, 4, 4), torch.arange(2))
    for hold in (False, True):
        for (plain, _), (inner, _) in zip(
            Batches(source, 2), Batches(source, 2, hold=hold, channels_last=True), strict=True
        ):
            assert torch.equal(plain, inner) and inner.stride(1) == 1 != plain.stride(1)


def test_held_batches_are_read_once():
    class Counting(Memory):
        reads = 0

        def read(self, indices):
            self.reads += 1
            return super().read(indices)

    for hold, reads in ((True, 3), (False, 6)):
        source = Counting(torch.zeros(7, 1), torch.zeros(7))
        loader = Batches(source, 3, hold=hold)
        list(loader), list(loader)
        assert source.reads == reads


def test_balanced_points_have_as_many_of_each_class_as_there_are():
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 3)
    places = balanced(labels, 40, stream(0, "x"))
    counts = torch.bincount(labels[places], minlength=3).tolist()
    assert counts[2] == 3 and sorted(counts[:2]) == [18, 19] and len(set(places.tolist())) == 40
    assert balanced(labels, 83, stream(0, "x")).sort().values.tolist() == list(range(83))
    assert labels[places].tolist() != sorted(labels[places].tolist())


def test_fits_are_on_points_that_networks_learned_from():
    learned, _ = everything(learned_from(DIGITS))
    known = {tuple(each.flatten().tolist()) for each in learned}
    chosen, targets = everything(fit_source(DIGITS, 80, None))
    assert len(chosen) == 80 and all(tuple(each.flatten().tolist()) in known for each in chosen)
    assert torch.bincount(targets).tolist() == [10] * 8
    again, _ = everything(fit_source(DIGITS, 80, None))
    assert torch.equal(chosen, again)
    assert len(fit_source(DIGITS, None, None)) == len(fit_source(DIGITS, 10**6, None)) == len(learned)


def test_an_image_is_drawn_together_with_its_rotations():
    upright, _ = everything(query_source("digits", DIGITS, 20, None))
    turned, _ = everything(query_source("digits-rotated-90", DIGITS, 20, None))
    assert len(upright) == 20
    assert torch.equal(torch.rot90(upright, 1, (-2, -1)), turned) or torch.equal(
        torch.rot90(upright, -1, (-2, -1)), turned
    )
    assert len(query_source("digits", DIGITS, None, None)) == len(open_set("digits", "test"))
