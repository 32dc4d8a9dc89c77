"""`kdaverify export`: the calls of a session as files, for a kernel that runs somewhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from kdaverify.cli.complaint import HARNESS, Complaint, as_complaint, complain
from kdaverify.cli.options import SEED, Profile, of_operator, taking
from kdaverify.cli.request import Request
from kdaverify.operator import DEFAULT

if TYPE_CHECKING:
    from kdaverify.adapters.declaration import Declaration
    from kdaverify.adapters.declared_function import FunctionInWords
    from kdaverify.adapters.exchange.manifest import Manifest

DTYPES = "format of q, k, v, beta and o: fp64, fp32, bf16 or fp16; repeatable (default: fp32)"
CONTRACT = (
    "preset such as chunk64-bf16, for all formats; or FORMAT=PRESET, repeatable (default:"
    " recurrent-fp32)"
)
OP = "the operator: kda (also Gated DeltaNet and DeltaNet, by --gates), attention, short_conv, ..."
OPTION = "option NAME=VALUE of another operator than kda, such as lse=2; repeatable"
WITHOUT = "parameter of another operator than kda that the kernel does not take; repeatable"


@taking(of_operator("kda.commands.declaration:OPTIONS"))
def export(
    folder: Annotated[Path, typer.Argument(help="new folder for the files")],
    profile: Profile = "smoke",
    kda_seed: Annotated[int | None, SEED] = None,
    name: Annotated[
        str, typer.Option(help="name of the implementation; default: the folder's")
    ] = "",
    op: Annotated[str, typer.Option(help=OP)] = DEFAULT,
    option: Annotated[list[str] | None, typer.Option(metavar="WORD", help=OPTION)] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="NAME", help=WITHOUT)] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAME", help=DTYPES)] = None,
    contract: Annotated[list[str] | None, typer.Option(metavar="NAME", help=CONTRACT)] = None,
    **declared: Any,
) -> int:
    """Write the calls of the suites to files, with a runner that needs only safetensors and the
    kernel.

    The options declare the kernel, in the words of @kdaverify.kernel: its inputs are written in its
    own conventions.

    Examples:
    kdaverify export cases --dtype bf16 --contract chunk64-bf16 --state vk
    kdaverify export cases --op short_conv --dtype bf16 --without bias

    There, with cases/ copied: python cases/run.py my_module:my_function --framework jax

    Here, with cases/outputs/ brought back: kdaverify score cases

    Exit codes: 0 exported, 2 harness or usage error.
    """
    words = _words(**declared, dtypes=dtype, contract=contract)
    words["name"] = name or folder.resolve().name
    own = OwnWords(op, tuple(option or ()), tuple(without or ()))
    return _export(folder, _draft(folder, profile, kda_seed, words, own), Console())


def _words(**given: Any) -> dict[str, str]:
    """Options as NAME:option=value has them."""
    texts = {True: "yes", False: "no"}
    return {
        option: (
            "+".join(map(str, value))
            if isinstance(value, list | tuple)
            else texts[value]
            if isinstance(value, bool)
            else str(value)
        )
        for option, value in given.items()
        if value not in (None, [], ())
    }


@dataclass(frozen=True)
class OwnWords:
    """What is said of a kernel of another operator than KDA; see the options of `export`."""

    op: str
    options: tuple[str, ...]
    without: tuple[str, ...]


def _draft(
    folder: Path, profile: str, seed: int | None, words: dict[str, str], own: OwnWords
) -> Manifest:
    """Makes the folder, with a manifest that has no cases yet."""
    from kdaverify.adapters.base import AdapterError
    from kdaverify.adapters.exchange.manifest import Manifest
    from kdaverify.adapters.exchange.recorder import prepare
    from kdaverify.plugin.options import default_seed
    from kdaverify.problems.profiles import check_profile

    if "," in str(folder):
        raise Complaint(f"{folder}: wanted a name without commas; name another folder")
    with as_complaint(ValueError, prefix="--"), as_complaint(AdapterError):
        check_profile(profile)
        drawn_from = default_seed(profile, datetime.now(UTC)) if seed is None else seed
        draft = Manifest.draft(_declaration(words, own), profile=profile, seed=drawn_from)
        prepare(folder, draft)
    return draft


def _declaration(words: dict[str, str], own: OwnWords) -> Declaration | FunctionInWords:
    from kdaverify.adapters.declaration import Declaration, declared
    from kdaverify.adapters.declared_function import function_in_words

    if own.op == DEFAULT:
        if own.options or own.without:
            raise Complaint(
                "--option and --without are of other operators than kda: name it by --op"
            )
        return declared(words)
    usual = _words(**{name: field.default for name, field in Declaration.model_fields.items()})
    said = {name: text for name, text in words.items() if text != usual.get(name)}
    return function_in_words(own.op, said, own.options, own.without)


def _export(folder: Path, draft: Manifest, console: Console) -> int:
    from kdaverify.adapters.exchange.recorder import Recorder
    from kdaverify.cli.run import session
    from kdaverify.plugin.options import subjects
    from kdaverify.plugin.session import session_of
    from kdaverify.report.progress import ProgressBar

    # As for `verify`: nothing from outside has a say in the session.
    for variable in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(variable, None)
    console.print(
        Text(f"exporting the calls of profile {draft.profile} for {draft.declaration.name}")
    )
    config, ended = session(_request(folder, draft), ProgressBar(console, "exporting", "exported"))
    if config is None:
        return HARNESS
    wrong = [trouble.message for trouble in session_of(config).trouble]
    if wrong or ended != 0:
        reported = wrong[0] if wrong else f"the session ended with {ended!r}"
        return complain(
            f"{folder}: the export was not completed: {reported};"
            " remove the folder and export again"
        )
    recorder = subjects(config)[0].adapter
    assert isinstance(recorder, Recorder)
    return _conclude(
        folder,
        recorder.finish(),
        [verdict.message for verdict in session_of(config).ordered()],
        console,
    )


def _request(folder: Path, draft: Manifest) -> Request:
    return Request(
        impls=(f"offline:export={folder}",),
        profile=draft.profile,
        seed=draft.seed,
        record=None,
        json_file=None,
        workers="0",
        require_impl=False,
    )


def _conclude(folder: Path, manifest: Manifest, reasons: list[str], console: Console) -> int:
    """Says what was written, and what to do with it."""
    if not manifest.calls:
        return complain(
            f"{folder}: nothing was exported, every case was skipped: {reasons[0]}; change the"
            " declaration"
        )
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors")) / 2**20
    skipped = sum(not case.calls for case in manifest.cases)
    lines = (
        (
            f"{len(manifest.cases) - skipped} cases, {len(manifest.calls)} calls, {size:.0f} MiB in"
            f" {folder} ({skipped} cases without a call)"
        ),
        (
            f"there: copy {folder} to where the kernel runs; python run.py my_module:my_function"
            " [--framework torch|jax|numpy]"
        ),
        f"here: bring {folder}/outputs back; kdaverify score {folder}",
    )
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return 0
