"""From a configuration to a name: the same settings, in whatever order, have the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from slu.errors import SettingError


def canonical(config: Mapping[str, Any]) -> str:
    """JSON with sorted keys and no spaces: one text for one configuration.

    Raises:
        SettingError: It holds what JSON has no words for; a NaN, or an object.

    >>> canonical({"b": 1, "a": (2.0, None)})
    '{"a":[2.0,null],"b":1}'
    """
    try:
        return json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as reason:
        raise SettingError(f"a run's configuration must be plain data: {reason}") from reason


def name_of(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits.

    >>> name_of({"a": 1, "b": 2}) == name_of({"b": 2, "a": 1}), len(name_of({}))
    (True, 16)
    """
    return hashlib.blake2b(canonical(config).encode(), digest_size=8).hexdigest()
