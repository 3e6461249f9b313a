"""Which method would one pick, at what cost, and where ours loses: computed from the numbers, in words."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from slu_experiments.publishing.blocks import LOSS, OURS, TIE, Block, Contest, Standing
from slu_experiments.settings import METHODS

FREE = "max-logit"
NEIGHBOURS = "knn"
_HEADLINE = "3p"
_NONE = "–"


def title_of(method: str) -> str:
    """As it is printed; the default is called so."""
    title = METHODS[method].title
    return f"{title} (default)" if method == "slu-default" else title


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; the first row stands over it."""
    heading, *others = rows
    return [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *others)]


def picks(blocks: Sequence[Block]) -> list[str]:
    """A small table: per block the best method within the budget, its cost, and ours beside it."""
    ours = [method for method in OURS if any(block.standing(method) for block in blocks)]
    heading = ["data", "budget", "pick", "AUROC", "kept", "fit", "per query", *(title_of(each) for each in ours)]
    rows = [heading]
    for block in blocks:
        if block.within():
            best = block.within()[0]
            beside = [block.standing(method) for method in ours]
            rows.append(
                [
                    block.setting.title,
                    block.budget,
                    title_of(best.method),
                    str(best.auroc),
                    *_cost(best),
                    *(_NONE if each is None else f"{each.auroc.mean:.3f}" for each in beside),
                ]
            )
    return markdown(rows)


def _cost(standing: Standing) -> list[str]:
    return [f"{standing.copies:.2f}p", seconds(standing.fit), seconds(standing.query)]


def seconds(value: float) -> str:
    """A time in two digits.

    >>> seconds(0.000436), seconds(3.91), seconds(65.3), seconds(7000)
    ('0.44 ms', '3.9 s', '65 s', '1.9 h')
    """
    for unit, size in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3)):
        if value >= size or unit == "ms":
            shown = value / size
            return f"{shown:.0f} {unit}" if shown >= 10 else f"{shown:.2g} {unit}"
    raise AssertionError(value)


def words(block: Block) -> list[str]:
    """What to take from a block, as a list: the pick, what is as good, what costs nothing, where ours loses."""
    within = block.within()
    if not within:
        return [f"- **{block.title}**: no method was judged on every set yet."]
    best = within[0]
    kept, fit, query = _cost(best)
    networks = f"{best.auroc.seeds} network{'s' if best.auroc.seeds > 1 else ''}"
    against = [block.contest(best.method, each.method) for each in within[1:]]
    equal = [each.other for each in against if each and each.verdict == TIE]
    unknown = [each.other for each in against if each and each.verdict is None]
    free = next((each for each in within if each.copies == 0), best)
    lines = [
        f"**{title_of(best.method)}**: mean AUROC {best.auroc} over {networks}; keeps {kept}, fitted in {fit}, {query} "
        "per query.",
        f"Not told apart from it by these networks: {_titles(equal)}." if equal else "",
        f"One network in common with it, so no verdict: {_titles(unknown)}." if unknown else "",
        f"Best of those that keep nothing: {title_of(free.method)}, {free.auroc}." if free is not best else "",
        f"Best per family of sets: {'; '.join(_best_of(block, family) for family in block.families)}.",
        *losses(block),
    ]
    return [f"- {block.title}", *(f"  - {line}" for line in lines if line)]


def _best_of(block: Block, family: str) -> str:
    values = {each.method: mean(block.family_values(each.method, family)) for each in block.within()}
    best = max(values, key=lambda name: values[name])
    return f"on {family} {title_of(best)} ({values[best]:.3f})"


def losses(block: Block) -> list[str]:
    """Where ours loses, by the verdicts over networks: one sentence for each of ours that was run."""
    lines = []
    for ours in (name for name in OURS if name in block.methods):
        against = list(block.contests(ours, block.others))
        judged = [each for each in against if each.verdict]
        if not judged:
            lines.append(f"{title_of(ours)}: no verdict against any other method, for want of a second network.")
            continue
        lost = sorted((each for each in judged if each.verdict == LOSS), key=lambda each: each.difference)
        single = [
            each
            for each in block.contests(ours, block.others, by_family=True)
            if each.verdict == LOSS and each.other not in {one.other for one in lost}
        ]
        texts = [f"{title_of(each.other)} ({each.difference:+.2f})" for each in lost]
        text = f"loses to {'; '.join(texts)}" if lost else f"loses to none of {len(judged)} other methods"
        text += f"; on single families also to {_by_family(single)}" if single else ""
        lines.append(f"{title_of(ours)} {text}.")
    return lines


def _by_family(contests: Sequence[Contest]) -> str:
    families = dict.fromkeys(each.family for each in contests)
    return "; ".join(
        f"{_titles([each.other for each in contests if each.family == family])} (on {family})" for family in families
    )


def _titles(methods: Sequence[str]) -> str:
    return "; ".join(title_of(name) for name in methods)


def signed(contest: Contest) -> str:
    """A difference with its interval."""
    if contest.interval is None:
        return f"{contest.difference:+.3f}"
    low, high = contest.interval
    return f"{contest.difference:+.3f}, {low:+.3f} to {high:+.3f}"


def headline(blocks: Sequence[Block]) -> list[str]:
    """README's table: per setting the mean AUROC over families at 3p and the memory kept, of five rows."""
    shown = [block for block in blocks if block.budget == _HEADLINE]
    rows = [["", *(block.setting.title for block in shown)]]
    for name, of in {
        "SLU's default": "slu-default",
        "SLU as in the paper": "slu",
        "best of the paper's others": None,
        "max logit": FREE,
        "nearest neighbours": NEIGHBOURS,
    }.items():
        if of is not None and of not in METHODS:
            continue
        cells = []
        for block in shown:
            standing = _best_of_paper(block) if of is None else block.standing(of)
            which = f"{title_of(standing.method)} " if standing and of is None else ""
            cells.append(_NONE if standing is None else f"{which}{standing.auroc} ({standing.copies:.2f}p)")
        rows.append([name, *cells])
    networks = ", ".join(f"{len(block.seeds)} on {block.setting.title}" for block in shown)
    return [
        *markdown(rows),
        "",
        f"AUROC at a budget of {_HEADLINE}, mean over families of out-of-distribution sets ± spread over networks "
        f"({networks}), and the copies of the parameters kept.",
    ]


def _best_of_paper(block: Block) -> Standing | None:
    """Of the paper's methods by their formulas, without SLU; whatever they keep, as in its tables."""
    others = [each for each in block.standings if METHODS[each.method].paper == each.method != "slu"]
    return others[0] if others else None
