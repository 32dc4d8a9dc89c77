"""The properties that suites test, one entry each: all that the package has of them by name.

Everything that treats properties differently (what is paired over a run, accepted by the ledger,
minimised, localised, left out for want of a backward) reads it here, so that a new property is a
check, a suite and an entry. Loaded without torch: the command line reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Literal


class Tier(IntEnum):
    """Where tests stand in the order of evidence: those of a lower tier are run first.

    Rules of calls take 20 ms a test and find what no numbers of one call show; behind the derived
    suites, a port that fails them alone was rejected after two thirds of the run. Laws of a forward
    take 20 times as long a test.
    """

    PLAIN = 0
    RULES = 1
    LAWS = 2
    GRADIENTS = 3
    GRADIENT_RULES = 4
    DERIVED = 5


@dataclass(frozen=True)
class Statement:
    """A law that is tested by a suite of its own.

    Args:
        statement: what holds, in one line.
        section: of math.md, and the number of the law there.
        exists_for: the mechanism of the faults it is to catch, with examples of the catalogue.
    """

    statement: str
    section: str
    exists_for: str


Plain = Literal["", "forward", "gradients"]


@dataclass(frozen=True)
class Property:
    """What a suite tests of a problem.

    Args:
        name: of the property, and of its suite.
        function: "module:function" in kdaverify, (adapter, problem, **detail) -> outcomes; of the
            conventions (adapter) alone.
        groups: of operators that have it: `Operator.group`.
        tier: where its tests stand in the order of evidence; rules of calls that are about
            gradients, or of a real size, have one of their own.
        of_gradients: it tests derivatives of whole calls, and nothing else.
        stages: whether it tests single stages, and of which pass.
        paired: it holds outputs or gradients of whole calls against exact values, whose errors over
            a run are compared with those of the emulated kernels.
        plain: which call a case is, where it is one call against exact values and nothing else;
            other properties derive theirs from it.
        same_outputs: whether its calls have the outputs of one plain forward of the problem, of as
            many tokens as they have.
        relates: whether it compares calls with each other, and fails by their difference alone.
        fixed: its cases are those of the panel, whose precision the ledger accepts.
        shrinks: its problems keep their point when they are made smaller.
        both_passes: its failures are followed through the stages of the backward too.
        followed: how the call whose stages are followed differs from the call that failed.
        seconds: about what one test takes in smoke on one core; orders tests of the kill matrix.
        law: what it states, where that is a law.
    """

    name: str
    function: str
    groups: tuple[str, ...] = ("delta",)
    tier: Tier = Tier.DERIVED
    of_gradients: bool = False
    stages: Literal["", "forward", "backward"] = ""
    paired: bool = False
    plain: Plain = ""
    same_outputs: bool = False
    relates: bool = False
    fixed: bool = False
    shrinks: bool = True
    both_passes: bool = False
    followed: str = ""
    seconds: float = 0.5
    law: Statement | None = None

    @cached_property
    def check(self) -> Callable[..., list[Any]]:
        """The function, imported when it is first called."""
        module, _, name = self.function.partition(":")
        return getattr(import_module(f"kdaverify.{module}"), name)

    @property
    def backward(self) -> bool:
        """Whether it can be tested of kernels with a backward alone."""
        return self.of_gradients or self.stages == "backward"


_EVERY: Final = ("delta", "general")
_UNCUT: Final = "tested on one uncut run"
_ALL: Final = (
    Property("conventions", "checks.conventions:conventions", tier=Tier.PLAIN, seconds=0.005),
    Property("forward", "checks.forward:forward", tier=Tier.PLAIN, groups=_EVERY, plain="forward",
             paired=True),
    Property("panel", "checks.forward:forward", tier=Tier.PLAIN, groups=_EVERY, plain="forward",
             paired=True, fixed=True, seconds=0.2),
    Property("probes", "checks.probes:probes", tier=Tier.PLAIN, shrinks=False, seconds=0.1),
    Property("stages", "checks.stages:stages", tier=Tier.PLAIN, stages="forward",
             law=Statement("the tensors a kernel saves fit each other: o = scale qg h + Aqk v_new,"
                           " v_new = u - w h, R (I + Akk) = I", "3",
                           "intermediates of another layout, row or factor than the next stage"
                           " reads (H10, DESIGN-c)")),
    Property("gradients", "checks.gradients:gradients", tier=Tier.GRADIENTS, groups=_EVERY,
             of_gradients=True, plain="gradients", paired=True, fixed=True, both_passes=True,
             seconds=1.2),
    Property("backward_stages", "checks.stages:backward_stages", tier=Tier.GRADIENTS,
             stages="backward"),
    Property("state", "checks.forward:forward", plain="forward", paired=True),
    Property("extreme_gates", "checks.forward:forward", plain="forward", paired=True),
    Property("resume", "checks.resume:resume", tier=Tier.LAWS, same_outputs=True, paired=True,
             followed=_UNCUT, seconds=1.0,
             law=Statement("a run cut anywhere, in chunks or single tokens, is the uncut run",
                           "7, law 2",
                           "partial chunks, hand-over and layout of the state, the decode entry"
                           " point (H8, S8, S12, DESIGN-b)")),
    Property("packing", "checks.packing:packing", tier=Tier.LAWS, same_outputs=True, paired=True,
             followed="tested on the pack in one call, in its own order",
             law=Statement("sequences give the same packed, alone, and in a pack of another order",
                           "7, law 3", "offsets, empty sequences, order (V1, V4, V10)")),
    Property("causality", "checks.causality:causality", tier=Tier.LAWS, same_outputs=True,
             paired=True, followed="tested on the problem with its own later tokens",
             law=Statement("every later token replaced, gates too: o before it stays within its"
                           " tolerance", "7, law 1",
                           "anchors, masks and overflow behind a mask that reach back (A2, A16,"
                           " CS2)")),
    Property("options", "checks.forward:options", tier=Tier.LAWS, same_outputs=True, paired=True,
             law=Statement("chunk size, recompute, optional outputs, in-kernel gates and other"
                           " entry points give what the plain call gives", "7, law 4",
                           "code behind one option alone (H11, O3, X7)")),
    Property("combined", "checks.resume:combined", paired=True, both_passes=True),
    Property("gradcheck", "checks.gradcheck:gradcheck", of_gradients=True),
    Property("self_consistency", "checks.self_consistency:self_consistency", of_gradients=True,
             both_passes=True,
             law=Statement("the backward is the derivative of the kernel's own forward", "5",
                           "gradients of another forward than the kernel's (B2, B3, GA2)")),
    Property("jacobian", "checks.jacobian:jacobian", tier=Tier.GRADIENTS, of_gradients=True,
             both_passes=True),
    Property("cotangent_linearity", "checks.cotangent_linearity:cotangent_linearity", relates=True,
             of_gradients=True, both_passes=True,
             law=Statement("gradients are linear in the cotangents, to the bit for powers of two,"
                           " and 0 for 0", "7, law 13",
                           "terms of the backward without a cotangent, clamps, thresholds (B24,"
                           " B25)")),
    Property("laws", "checks.laws.registry:laws", groups=_EVERY,
             followed="tested on the problem by itself, where the law compares two calls"),
    Property("activations", "operators.pointwise.check:activations", groups=("pointwise",),
             seconds=0.02),
    Property("drift", "checks.drift:drift", shrinks=False, followed=_UNCUT),
    Property("calls", "checks.calls:calls", tier=Tier.RULES, relates=True, groups=_EVERY),
)  # fmt: skip

PROPERTIES: Final[Mapping[str, Property]] = MappingProxyType({found.name: found for found in _ALL})
"""By name, in the order in which failures are reported: the conventions; a plain forward; the
probes and stages that show where it goes wrong; plain gradients; then what is derived from those.
Tests run in this order within each tier."""


def named(which: Callable[[Property], bool]) -> tuple[str, ...]:
    """The names of some properties, in the order of the table."""
    return tuple(name for name, found in PROPERTIES.items() if which(found))


def plain_call(name: str, detail: Mapping[str, Any]) -> Plain:
    """Which call a case is, if it is one call against exact values alone; "" if more.

    Args:
        name, detail: of the property, as in verdicts; covering rows name their direction.
    """
    direction = str(detail.get("direction", PROPERTIES[name].plain)).partition(" ")[0]
    return direction if direction in ("forward", "gradients") else ""
