"""Why an input scores as it does: the numbers are those of the readings, as a table and as a picture."""

import pytest
import torch

from calibrated import COMBINED, POINTS, problem, slu
from oracles import LIKELIHOODS, targets_for
from slu.errors import SettingError


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_explanations(likelihood, tmp_path):
    model, inputs = problem()
    score = slu(model, likelihood).fit((inputs, targets_for(likelihood, POINTS)))
    some = inputs[:6]
    found = score.explain(some, outputs=2)
    assert len(found) == 6
    torch.testing.assert_close(found.magnitude, score(some, reading="fisher"), rtol=1e-9, atol=0)
    torch.testing.assert_close(found.share, score(some, reading="fisher-relative"), rtol=1e-9, atol=0)
    torch.testing.assert_close(found.combined, score(some, reading=COMBINED), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.pvalues, score.pvalue(some, reading=COMBINED))
    known = score.calibration.scores["fisher"]
    below = 100 * (known < found.magnitude.double()[:, None]).double().mean(1)
    torch.testing.assert_close(found.percentiles["fisher"], below)
    rows = score(some, reading="fisher", per_output=True)
    shares = (rows / rows.sum(1, keepdim=True)).sort(1, descending=True)
    torch.testing.assert_close(found.contributions, shares.values[:, :2], rtol=1e-9, atol=0)
    assert torch.equal(found.outputs, shares.indices[:, :2])
    text = str(found)
    assert f"{found.magnitude[5]:.3g}" in text and f"{score.calibration.points} calibration" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 110
    found.plot(tmp_path / "why.png")
    assert (tmp_path / "why.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(SettingError, match=r"\.jpg"):
        found.plot(tmp_path / "why.jpg")
    with pytest.raises(SettingError, match="1 to 60 inputs"):
        score.explain(inputs[:61]).plot(tmp_path / "why.png")
    with pytest.raises(SettingError, match="needs calibration points"):
        slu(model, likelihood).fit(inputs[:30]).explain(some).plot(tmp_path / "why.png")
