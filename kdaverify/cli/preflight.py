"""What a first call shows before any worker process starts: that every call is wrong, or that
workers would take longer to start than to work.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from kdaverify.cli.request import Request

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.plugin.crashes import CrashFiles

CONVENTIONS: Final = "conventions"
ORDINARY: Final = "forward"
"""Tested of every operator, those without a suite of conventions too: its first test reports what
is wrong with every call."""
QUICK: Final = frozenset({"short_conv", "gated_rms_norm", "merge_state"})
"""Operators whose smoke takes a core 1 to 6 s. Two workers import torch and the suites for 3 s of
CPU each before their first test (`python -m benchmarks.speed`)."""
HERE: Final = "the pre-flight"
"""What runs where a kernel ends the process of the first call."""
LATE: Final = 20.0
"""Seconds after which first calls that have not returned are reported: nothing was, for as long as
a kernel hung."""
PROMPT: Final = 0.5
"""Seconds that a first call of theirs takes at most: a kernel that is compiled for every shape is
judged sooner by two processes."""


def after_preflight(request: Request) -> Request:
    """The session as it is to run: where every call of every implementation is wrong, its first
    suite alone, in this process; where there is little to do, in this process too.

    Two workers take longer to start than one call takes to fail. What ships is not called here: it
    is known to answer.
    """
    begun = time.process_time()
    if request.crash_folder is None or not all(_fails(spec, request) for spec in request.impls):
        prompt = time.process_time() - begun < PROMPT * len(request.impls)
        here = prompt and _quick(request)
        return request.model_copy(update={"workers": "0"}) if here else request
    return request.model_copy(
        update={"only": tuple(dict.fromkeys(map(_first_suite, request.impls))), "workers": "0"}
    )


def _quick(request: Request) -> bool:
    """Whether this process judges sooner than workers begin. A number of workers stands."""
    from kdaverify.adapters.registry import find

    ops = {find(spec).op for spec in request.impls}
    return request.workers == "auto" and request.profile == "smoke" and ops <= QUICK


def _first_suite(spec: str) -> str:
    from kdaverify.adapters.registry import find
    from kdaverify.plugin.suite_files import shipped

    return CONVENTIONS if CONVENTIONS in shipped(find(spec).op) else ORDINARY


def _fails(spec: str, request: Request) -> bool:
    from kdaverify.adapters.isolation import housed
    from kdaverify.adapters.registry import find
    from kdaverify.plugin.crashes import CrashFiles

    assert request.crash_folder is not None
    adapter, files = find(spec), CrashFiles(request.crash_folder)
    if (
        _ships(spec)
        or not (adapter.open_ended and adapter.answers)
        or adapter.missing()
        or any(crash.test != HERE for crash in files.crashes(spec))
    ):
        return False
    # A device keeps what a process has taken of it until that ends; a kernel that ended the process
    # of the pre-flight may do so in every call, which 271 failing verdicts said of one port.
    apart = adapter.device != "cpu" or bool(files.crashes(spec)) or None
    adapter = housed(
        adapter,
        spec,
        isolate=apart if request.isolate is None else request.isolate,
        limits=request.limits,
    )
    return _misfit(adapter, spec, files)


def _ships(spec: str) -> bool:
    """Whether the kernel comes with kdaverify, also under an option that takes no other kernel."""
    from kdaverify.adapters.registry import source_of, without_options
    from kdaverify.adapters.shipped import SHIPPED

    name = without_options(spec)
    return name in SHIPPED and source_of(spec) == source_of(name)


def _misfit(adapter: Adapter, spec: str, files: CrashFiles) -> bool:
    """Whether every call is wrong. A kernel that ends this process is isolated in the next try."""
    from kdaverify.foreign_warnings import foreign_warnings

    late = threading.Timer(LATE, _say_late, (adapter, spec))
    late.daemon = True
    late.start()
    if not adapter.isolated:
        files.begin(spec, HERE)
    try:
        with foreign_warnings():
            return adapter.operator.misfit(adapter) is not None
    finally:
        late.cancel()
        files.end()
        files.close()
        adapter.end()


def _say_late(adapter: Adapter, spec: str) -> None:
    ends = (
        "each ends after --time-limit"
        if adapter.isolated
        else "with --isolate each ends after --time-limit"
    )
    # while the call runs
    print(  # noqa: T201
        f"{spec}: the first calls have taken {LATE:.0f} s: the kernel is compiled, is slow, or"
        f" hangs; {ends}",
        flush=True,
    )
