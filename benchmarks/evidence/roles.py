"""Which networks the default was chosen on, and which judge it: fixed before any of them was scored.

A network is a study and a seed. Of those that choose every number may be looked at while the default reading is
settled; those that judge are scored once it is. The report prints this table, stores it with the results, and checks
the claims on networks that judge alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.evidence.tables import TABLES

CHOOSE, JUDGE = "choose", "judge"
Network = tuple[str, int]

ROLES: Mapping[str, Mapping[str, Sequence[int]]] = {
    CHOOSE: {
        "digits-mlp": (1,),
        "mnist-mlp-short": (1,),
        "fmnist-lenet-short": (1,),
        "cifar10-conv": (1,),
        "far-relu": (1,),
        next(iter(TABLES)): (1,),
        "uci-power": (1,),
        "celeba-conv": (1,),
    },
    JUDGE: {
        "digits-mlp": (2, 3),
        "mnist-mlp-short": (2, 3),
        "mnist-mlp": (2,),
        "fmnist-lenet-short": (2, 3),
        "fmnist-lenet": (2,),
        "fmnist-lenet-near": (2, 3),
        "cifar10-conv": (2,),
        "cifar10-plain": (2,),
        "cifar10-resnet": (2,),
        "text-minilm": (2,),
        "celeba-conv": (2,),
        **dict.fromkeys(TABLES, (2, 3)),
        "far-relu": (2, 3),
        "far-gelu": (2, 3),
        "far-tanh": (2, 3),
        "uci-power": (2, 3),
        "uci-protein": (2, 3),
    },
}
"""{role: {study: seeds}}."""


def role_of(study: str, seed: int) -> str:
    """The role of a network; "" for one that has none."""
    return next((role for role, studies in ROLES.items() if seed in studies.get(study, ())), "")


def networks(roles: Sequence[str] = (CHOOSE, JUDGE)) -> list[Network]:
    """All networks that have one of the roles."""
    return [(study, seed) for role in roles for study, seeds in ROLES[role].items() for seed in seeds]
