"""What a function of another operator than KDA declares, for a command line or manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from kdaverify.adapters.base import AdapterError
from kdaverify.canonical import ProblemError
from kdaverify.operator import CallOperator, call_operator


class FunctionInWords(BaseModel):
    """The declaration of a function that is not here.

    Args:
        op: the operator that it implements.
        name: shown in every record.
        dtypes: formats of its inputs.
        contract: by name; None for the operator's default.
        widths: all that it takes of the operator's width; () any.
        final_state: whether it returns one, where the operator has one.
        deterministic: False if the same call may give other bits.
        words: the operator's own options, as `kernel` has them.
        without: parameters that it does not take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    op: str
    name: str
    dtypes: tuple[str, ...] = ("fp32",)
    contract: str | None = None
    widths: tuple[int, ...] = ()
    final_state: bool = True
    deterministic: bool = True
    words: dict[str, str] = {}
    without: tuple[str, ...] = ()

    @property
    def operator(self) -> CallOperator:
        """The operator itself.

        Raises:
            AdapterError: there is none of this name whose calls fit into files.
        """
        try:
            return call_operator(self.op)
        except ProblemError as error:
            raise AdapterError(f"kernel {self.name!r}: {error}") from None

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tensors that it gets one after the other."""
        return self._taken(self.operator.parameters()[0])

    @property
    def keywords(self) -> tuple[str, ...]:
        """The arguments that it gets by name."""
        return self._taken(self.operator.parameters()[1])

    @property
    def options(self) -> dict[str, Any]:
        """Those of `kernel`, where they are not the default."""
        given = self.model_dump(exclude={"op", "words", "without"}, exclude_defaults=True)
        return {**given, **self.words}

    def _taken(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in self.without)


def function_in_words(
    op: str, words: Mapping[str, str], own: Sequence[str], without: Sequence[str]
) -> FunctionInWords:
    """The declaration that options make.

    Args:
        op: the operator.
        words: options of every operator's kernels, as `declared` has them.
        own: the operator's own options, each as NAME=VALUE.
        without: parameters that the function does not take.
    Raises:
        AdapterError: an option has no such value or is none of the operator's, or no parameter.
    """
    if others := sorted(words.keys() - _READ.keys() - {"name", "contract"}):
        raise AdapterError(
            f"{others[0]}: an option of KDA kernels; op={op!r} has its own as --option NAME=VALUE"
        )
    read: dict[str, Any] = {
        name: _READ[name](text) if name in _READ else text for name, text in words.items()
    }
    found = FunctionInWords(op=op, **read, words=dict(map(_pair, own)), without=tuple(without))
    known = [name for names in found.operator.parameters() for name in names]
    if others := [name for name in found.without if name not in known]:
        raise AdapterError(
            f"without: op={op!r} has no parameter {others[0]}; it has {', '.join(known)}"
        )
    return found


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "dtypes": lambda text: tuple(text.split("+")),
    "widths": lambda text: tuple(map(int, text.split("+"))),
    "final_state": lambda text: text == "yes",
}
"""How the text of an option is read, where it is not taken as it is."""


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise AdapterError(f"option: wanted NAME=VALUE, got {text!r}")
    return name, value
