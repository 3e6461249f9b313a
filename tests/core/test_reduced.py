"""P-values of whole inputs, of which positions are scored."""

import torch

from positions import Tagger, seeded, texts
from slu import SLU


def test_pvalues_of_reduced_scores_are_the_same_in_any_batch():
    """Texts sorted by length, as loaders give them that pad little: a batch is as good as one text alone, and shows
    no rounding, as others do."""
    model = seeded(lambda: Tagger(width=96)).float()  # in float64 rounding is too small to matter
    whole = texts(length=14)
    lengths = whole[0]["attention_mask"].sum(1)
    distinct = [int((lengths == length).nonzero()[0]) for length in lengths.unique()]
    chosen = torch.tensor([place for place in distinct for _ in range(40)])

    def cut(places):
        longest = int(lengths[places].max())
        return {name: each[places][:, :longest] for name, each in whole[0].items()}

    score = SLU(model, "classification").fit([cut(some) for some in chosen.split(16)])
    asked = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))][:100]
    for reduce in ("max", "mean"):
        for reading in ("combined", "entropy"):
            pvalues = [
                torch.cat([score.pvalue(cut(some), reading=reading, reduce=reduce) for some in asked.split(size)])
                for size in (1, 7, 100)
            ]
            assert torch.equal(pvalues[0], pvalues[1]) and torch.equal(pvalues[0], pvalues[2]), (reduce, reading)
