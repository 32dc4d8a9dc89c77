"""Options on the command line: each by name, with the values it may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kdaverify.adapters.base import AdapterError

Known = Mapping[str, Sequence[str] | None]
"""Names of options, with the values accepted; None where any text is."""


def checked(adapter: str, options: Mapping[str, str], known: Known) -> Mapping[str, str]:
    """The options as given.

    Raises:
        AdapterError: no such option, or no such value of it.
    """
    for name, value in options.items():
        if name not in known:
            raise AdapterError(f"{adapter}: no option {name!r}; it has {', '.join(known)}")
        allowed = known[name]
        if allowed is not None and value not in allowed:
            raise AdapterError(
                f"{adapter}: option {name}: wanted one of {', '.join(allowed)}, got {value!r}"
            )
    return options
