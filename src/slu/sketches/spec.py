"""What a sketch is built from: a few numbers that fit into the header of an artefact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slu.errors import SettingError


@dataclass(frozen=True)
class SketchSpec:
    """The whole description of a sketch S of shape (s, p): equal specs give equal numbers.

    >>> SketchSpec("hashed", parameters=10_000, size=100).filled({"nonzeros": 1}).options
    {'nonzeros': 1}

    Attributes:
        kind: A name from the table of sketches.
        parameters: p, the length of the vectors that are sketched.
        size: s, the length of a sketched vector.
        seed: The user's seed; each purpose draws from its own stream of it.
        options: Whole numbers that only this kind knows; what is left out takes the kind's default.
    """

    kind: str
    parameters: int
    size: int
    seed: int = 0
    options: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, value in (("parameters", self.parameters), ("size", self.size)):
            if value < 1:
                raise SettingError(f"a sketch needs {name} >= 1, {value} came")
        for name, value in self.options.items():
            if not isinstance(value, int) or value < 1:
                raise SettingError(f"option {name!r} of sketch {self.kind!r} is {value!r}; give a whole number >= 1")

    def filled(self, defaults: Mapping[str, int]) -> SketchSpec:
        """This spec with every option of its kind present; an option the kind does not know fails."""
        for name in self.options:
            if name not in defaults:
                valid = ", ".join(map(repr, defaults)) or "none"
                raise SettingError(f"sketch {self.kind!r} has no option {name!r}; its options: {valid}")
        return replace(self, options={**defaults, **self.options})
