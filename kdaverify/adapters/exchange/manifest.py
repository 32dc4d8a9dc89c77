"""What was exported: one JSON file with the declaration, cases, calls and their files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

import kdaverify
from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.declaration import Declaration
from kdaverify.adapters.declared_function import FunctionInWords
from kdaverify.adapters.exchange.declared import Entry, adapter_of

NAME: Final = "manifest.json"
INPUTS: Final = "inputs"
OUTPUTS: Final = "outputs"
SCHEMA: Final = 2
"""2: any operator; values by name where 1 had the scale, links where it had the state alone."""


class ExchangeError(AdapterError):
    """Exported calls that cannot be judged; the message names the file and what to do."""


class Frozen(BaseModel):
    """Written once, and read by no version that does not know every field."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Outline(Frozen):
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str


class ExportedCall(Frozen):
    """One call.

    Args:
        file: name of its file, in the folder of the inputs and in that of the outputs.
        entry: "forward", "step" for decoding one token, or "vjp" for the gradients; the file of
            that holds do and d_final_state too.
        values: the numbers and words that the function gets, by name.
        links: the inputs that are outputs of earlier calls, with those calls' files and names.
        sha256: of the input file.
        outputs: what is wanted, in the kernel's conventions, where these are known.
    """

    file: str
    entry: Entry
    values: dict[str, bool | int | float | str] = {}
    links: dict[str, tuple[str, str]] = {}
    sha256: str = ""
    outputs: dict[str, Outline] = {}


class ExportedCase(Frozen):
    """One case of the suites.

    Args:
        tested: as adapters get it: property, problem and detail; `asked` in files.
        calls: in order; none where the kernel does not take the problem.
    """

    tested: str = Field(
        validation_alias=AliasChoices("tested", "asked"), serialization_alias="asked"
    )
    calls: tuple[ExportedCall, ...]


class Manifest(Frozen):
    """All of an export.

    Args:
        kdaverify: the version that exported: another one may have other tests.
        profile, seed: of the session.
        positional, keywords: what the function gets by place, and by name.
        returned: what it may return, in order.
        digest: of everything else here; "" until the export is complete.
    """

    schema_version: int = SCHEMA
    kdaverify: str = kdaverify.__version__
    profile: str
    seed: int
    declaration: Declaration | FunctionInWords
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    returned: tuple[str, ...]
    cases: tuple[ExportedCase, ...] = ()
    digest: str = ""

    @classmethod
    def draft(
        cls, declaration: Declaration | FunctionInWords, *, profile: str, seed: int
    ) -> Manifest:
        """That of an export that has no cases yet.

        Raises:
            AdapterError: the declaration contradicts itself.
        """
        return cls(
            profile=profile,
            seed=seed,
            declaration=declaration,
            positional=declaration.tokens,
            keywords=declaration.keywords,
            returned=adapter_of(declaration, dict).operator.signature.returned,
        )

    @property
    def calls(self) -> tuple[ExportedCall, ...]:
        return tuple(call for case in self.cases for call in case.calls)

    def sealed(self, cases: tuple[ExportedCase, ...]) -> Manifest:
        """The complete manifest."""
        whole = self.model_copy(update={"cases": cases})
        return whole.model_copy(update={"digest": whole.content()})

    def content(self) -> str:
        """SHA-256 of everything but the digest."""
        fields = self.model_dump(mode="json", by_alias=True, exclude={"digest"})
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        fields = self.model_dump(mode="json", by_alias=True)
        (folder / NAME).write_text(json.dumps(fields, indent=1) + "\n")


def read(folder: Path) -> Manifest:
    """The manifest of a folder, complete or not.

    Raises:
        ExchangeError: there is none, it is no manifest of this version, or it was changed.
    """
    path = folder / NAME
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ExchangeError(
            f"{path}: no such file; `kdaverify export {folder}` makes the folder"
        ) from None
    except (OSError, ValueError) as error:
        raise ExchangeError(
            f"{path}: cannot be read, {error}; bring it back whole, or export again"
        ) from None
    _check_version(path, found)
    try:
        manifest = Manifest.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ExchangeError(
            f"{path}: {where}: {first['msg']}; the file was changed: export again"
        ) from None
    if manifest.digest not in ("", manifest.content()):
        raise ExchangeError(
            f"{path}: is not as it was exported (its digest differs); bring back the original, or"
            " export again"
        )
    return manifest


def _check_version(path: Path, found: Any) -> None:
    version = found.get("kdaverify") if isinstance(found, dict) else None
    if version != kdaverify.__version__:
        wanted = f"wanted one of kdaverify {kdaverify.__version__}, with the tests of this version"
        raise ExchangeError(
            f"{path}: {wanted}, got {version or 'no manifest'}; score with the version that"
            " exported, or export again"
        )
