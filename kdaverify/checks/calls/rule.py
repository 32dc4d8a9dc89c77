"""A rule: what a caller may rely on, whatever the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kdaverify.adapters.base import Channel
from kdaverify.checks.calls.case import CallRuleCheck
from kdaverify.checks.property_table import Tier

Size = Literal["tails", "tiny", "one", "equal", "equal-one", "chunks", "real", "long", "keys"]
"""A chunk and tails of several lengths, a handful of tokens, one, as many of everything, as many of
all but tokens and one of these, several chunks of a state that is held, over a thousand tokens of
eight heads, or as many of two; or what rules about keys are tested on.

Results of other bits are compared with certified values: for gradients of eight heads that takes
over a minute, for two 15 s."""
REAL: Final[tuple[Size, ...]] = ("real", "long")


@dataclass(frozen=True)
class CallRule:
    """One rule.

    Args:
        name: unique; `kdaverify list calls` and the detail of a verdict say it.
        about: what is relied on.
        exposes: what breaks it.
        check: runs the calls and judges what came.
        size: of the problem it is tested on.
        packed: tested on packs, or on batches.
        sequences: about tokens, sequences, states or offsets: tested on operators that have them.
        decode: about the decode entry point, of operators with a state to continue from.
        normalised: about rows that the kernel normalises: tested on those that declare to.
        states: about the state that a call continues from: tested on operators with one.
        offsets: about the offsets of a pack, or what lies past the last: tested on whatever packs,
            by one list of them or several.
        keys: about which keys rows see: tested on operators whose problems of one shape differ in
            it.
        scaled: about the scale: tested on operators whose problems have one.
        delta: about writes, or a state of keys and values: tested on the delta rule alone, as is
            the size `chunks`.
        sources: about a tensor that several inputs, heads or entries are made of: tested on
            operators that say which can be.
        copies: about many copies of one small problem: tested on operators that say of what.
        sets: about sets of inputs that need gradients: tested with those that may be absent too.
        far: about keys of weight 0: tested on operators that say how a call has them.
        aligned: tested on calls whose inputs have as many rows each, where the operator has others.
        apart: about NaN in one sequence: tested on operators whose calls may hold it.
        combined: about combinations of sizes: tested on every problem that the operator has of
            them.
        summed: about sums of gradients of parameters: tested on operators that say how many rows.
        in_turn: about sizes one after another: tested on operators that say which.
        fed_back: about outputs that the next call takes: tested on operators that say which.
        parameters: about parameters of the gate: tested on kernels that get any.
        spare: whether a pack has tokens past its last offset; `gradients` judges theirs.
        counted: calls many times: how often, the profile says.
        once: tested with one seed in every profile: the sizes alone count, as with a limit of a
            launch, and take time or memory to reach.
        memory: about what lies around and behind the elements of a tensor: tested over several
            widths, odd and tail ones among them.
        channel: of the kernel's memory that it looks at: not tested behind a barrier.
        inside: applies to the kernel itself, not to the process it is isolated in: tried in that
            process, as all rules with a channel are.
        backward: about gradients: not tested on kernels that have none.
        costly: smoke tests it in one format, as does acceptance of a kernel that is compiled for
            formats.
        rounded: about roundings to 16 bits: the one format of a costly rule is such, if any is.
        profile: the smallest profile that tests it.
    """

    name: str
    about: str
    exposes: str
    check: CallRuleCheck
    size: Size = "tiny"
    packed: bool = True
    sequences: bool = False
    decode: bool = False
    states: bool = False
    normalised: bool = False
    offsets: bool = False
    keys: bool = False
    scaled: bool = False
    delta: bool = False
    sources: bool = False
    copies: bool = False
    sets: bool = False
    far: bool = False
    aligned: bool = False
    apart: bool = False
    combined: bool = False
    summed: bool = False
    in_turn: bool = False
    fed_back: bool = False
    parameters: bool = False
    spare: bool = True
    counted: bool = False
    once: bool = False
    memory: bool = False
    channel: Channel | None = None
    inside: bool = False
    backward: bool = False
    costly: bool = False
    rounded: bool = False
    profile: str = "smoke"

    @property
    def is_real(self) -> bool:
        """Whether it takes a problem of a size that ships."""
        return self.size in REAL

    @property
    def tier(self) -> Tier:
        """Where its tests stand in the order of evidence: those of a backward after plain
        gradients, which show more; those of a real size, of many seconds each, at the end.
        """
        if self.is_real:
            return Tier.DERIVED
        return Tier.GRADIENT_RULES if self.backward else Tier.RULES

    @property
    def needs_its_process(self) -> bool:
        return self.inside or self.channel is not None
