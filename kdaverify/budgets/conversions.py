"""What the conventions of a kernel make it compute: the base of its gates, a logarithm, a sigmoid;
and gradients of what it receives.

A kernel that receives logit(beta) rounds its own sigmoid; its gradient is the one with respect to
the logit. Both belong to its
contract: a float32 token loop with `beta="logit"` was rejected for 1.26 times its tolerance as long
as they did not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.budgets import activated_gates
from kdaverify.budgets.activated_gates import sigmoid
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from kdaverify.budgets.normalised_rows import ROWS, computed_rows, exact_row_gradient, row_gradient
from oracles.codecs import BETAS, IDENTITY, LARGEST, Codec
from oracles.double_double import two_product
from oracles.enclosure import Enclosure
from oracles.gate_activation import activation_of, gate_codec
from oracles.gradients import GradientAnswer, Gradients
from oracles.inputs import Inputs
from oracles.row_norm import GIVEN, norm_of

Exp = Callable[[Tensor], Tensor]
Rounding = Callable[[Tensor], Tensor]
Returned = Callable[[str, Tensor], Tensor]


# Units by which an approximate sigmoid of an accelerator errs, of those of its 1 / sqrt: its
# exponential (ex2.approx.ftz.f32: 2^-22) and its quotient (div.full.f32: 2 ulp). Of one token and
# head, where no other number averages with it, that of an H200 was rejected for 2.4 times the
# tolerance of S_T.
SIGMOID = 2.0


def as_it_is(_: str, gradient: Tensor) -> Tensor:
    """No rounding: of exact gradients."""
    return gradient


def converts(contract: Contract) -> bool:
    """Whether the kernel receives anything in another form than math.md's."""
    return contract.gate != "log" or contract.beta != "value" or contract.qk != GIVEN


def codec(contract: Contract, source: str) -> Codec:
    """The convention of the input `source`."""
    if source == "g":
        return gate_codec(contract.gate)
    return BETAS[contract.beta] if source == "beta" else IDENTITY


def as_handed(contract: Contract, source: str, canonical: Tensor) -> Tensor:
    """The input `source` as the kernel receives it, in float64.

    Args:
        canonical: what it stands for; of rows that the kernel normalises, the normalised ones.
    """
    norm = norm_of(contract.qk)
    if norm is not None and source in ROWS:
        return norm.rows(canonical.double())[0]
    return codec(contract, source).there(canonical.double())


def as_computed(
    inputs: Inputs, contract: Contract, io: Format, exp: Exp, *, lean: float = 0.0
) -> Inputs:
    """The call as a reference kernel goes on with it: beta is its own sigmoid, and g its own
    activation, made by its own exponential in the accumulator's format; rows are normalised.

    Gates in another base need nothing here: casting them to the working type rounds them as a
    product with ln 2 or a logarithm would.

    Args:
        lean: of its normalisation, as `computed_rows` has it; of its sigmoids, see SIGMOID.
    """
    keep, activation = contract.accumulate.round, activation_of(contract.gate)
    if contract.beta != "value":
        largest = LARGEST[contract.beta]
        logit = io.round(BETAS[contract.beta].there(inputs.beta.double()))
        beta = largest * sigmoid(logit.to(contract.work), exp, keep)
        beta = keep(beta * (1 + SIGMOID * lean * contract.accumulate.unit)).clamp(max=largest)
        inputs = replace(inputs, beta=_in_place_of(inputs.beta, beta))
    if activation is not None:
        x = contract.wide.round(as_handed(contract, "g", inputs.g)).to(contract.work)
        g = activated_gates.activated(activation, x, exp, keep)
        inputs = replace(inputs, g=_in_place_of(inputs.g, g))
    return computed_rows(inputs, contract, io, lambda y, fmt: fmt.round(y), lean)


def _in_place_of(exact: Tensor, computed: Tensor) -> Tensor:
    """What the kernel computed, with the gradient of the value it stands for: that of what the
    kernel receives is made from it afterwards.
    """
    exact = exact.double()
    change = (computed.double() - exact).detach()
    # An infinite gate is what it is.
    return exact + change.masked_fill(~torch.isfinite(exact), 0.0)


def drawn(
    inputs: Inputs, contract: Contract, io: Format, rounded: Callable[[Tensor, Format], Tensor]
) -> Inputs:
    """The same with every rounding a sample: one of a gate that changes its base, those of each
    step of one that is activated, two of a sigmoid (its sum and its quotient).

    Args:
        rounded: a value, and the format that it is rounded to.
    """
    fmt, activation = contract.accumulate, activation_of(contract.gate)
    if activation is not None:
        x = as_handed(contract, "g", inputs.g)
        g = activated_gates.activated(activation, x, torch.exp, lambda y: rounded(y, fmt))
        inputs = replace(inputs, g=g)
    elif contract.gate != "log":
        hard = inputs.g.isneginf()
        inputs = replace(
            inputs,
            g=rounded(inputs.g.double().masked_fill(hard, 0.0), fmt).masked_fill(hard, -torch.inf),
        )
    if contract.beta != "value":
        beta = rounded(rounded(inputs.beta.double(), fmt), fmt)
        inputs = replace(inputs, beta=beta.clamp(max=LARGEST[contract.beta]))
    return computed_rows(inputs, contract, io, rounded)


def received_gradients(
    found: Gradients[Tensor], call: Inputs, computed: Inputs, contract: Contract, returned: Returned
) -> Gradients[Tensor]:
    """Emulated gradients with respect to what the kernel receives.

    Math: dL/d received = slope dL/d canonical; the slope of a sigmoid y is y (1 - y) of the y that
    the kernel computed, that of an activated gate is made from x again.

    Args:
        found: with respect to log decays and write strengths.
        call, computed: the call as the kernel received it, and as it went on with it.
        returned: the rounding of what is returned, by the gradient's name: that of a logit is
            rounded once, after the slope. In fp16 it is subnormal where betas are near 0 or 1, and
            of 139 conforming kernels 25 were rejected while it was not rounded there.
    """
    activation = activation_of(contract.gate)
    if activation is not None:
        x = as_handed(contract, "g", call.g)
        slope = activated_gates.slope(activation, x, torch.exp, lambda y: returned("slope", y))
        found = replace(found, dg=returned("dg", found.dg.double() * slope))
    elif contract.gate != "log":
        slope, undefined = _slope(contract, "g", computed.g)
        found = replace(
            found, dg=returned("dg", found.dg.double() * slope).masked_fill(undefined, 0.0)
        )
    if contract.beta != "value":
        y = computed.beta.double()
        # 1 - y of a y that was rounded: no kernel knows more of it.
        slope = y * (1 - y / LARGEST[contract.beta])
        found = replace(found, dbeta=returned("dbeta", found.dbeta.double() * slope))
    if contract.qk != GIVEN:
        dtype = torch.float64 if returned is as_it_is else contract.work

        def of_rows(name: str) -> Tensor:
            dy, y, exact = found.named()[f"d{name}"], getattr(computed, name), getattr(call, name)
            return returned(f"d{name}", row_gradient(dy, y, exact, contract, dtype))

        found = replace(found, **{f"d{name}": of_rows(name) for name in ROWS})
    return found


def canonical_gradient(
    source: str, found: Tensor, call: Inputs, received: Inputs, contract: Contract
) -> Tensor:
    """The gradient of the input `source`, by the chain rule, from that of what is received.

    Args:
        call, received: the call, and what the kernel gets of it, q times the scale included.
    """
    if source == "q":
        return found * (call.factor / received.factor)
    if codec(contract, source).converts:
        return found / _slope(contract, source, getattr(received, source))[0]
    return found


def undefined_gradients(inputs: Inputs, contract: Contract) -> dict[str, Tensor]:
    """Elements without exact gradients: dg of a decay that is 0, or may be flushed to 0.

    dL/d decay is finite there, but it is no multiple of dL/d log decay, which is 0. Such elements
    have to be finite, no more.
    """
    return {"dg": _slope(contract, "g", inputs.g)[1]} if contract.gate == "decay" else {}


def received_answer(answer: GradientAnswer, inputs: Inputs, contract: Contract) -> GradientAnswer:
    """Exact gradients by what the kernel receives, beyond float64; slopes are float64."""
    if not converts(contract):
        return answer
    slopes = {
        name: _slope(contract, source, getattr(inputs, source))
        for name, source in (("dg", "g"), ("dbeta", "beta"))
        if codec(contract, source).converts
    }
    scaled = {name: _scaled(answer.named()[name], *slope) for name, slope in slopes.items()}
    if contract.qk != GIVEN:
        scaled |= {
            f"d{name}": exact_row_gradient(
                answer.named()[f"d{name}"], getattr(inputs, name), contract
            )
            for name in ROWS
        }
    return replace(answer, gradients=Gradients(**{**answer.named(), **scaled}))


def received_terms(terms: Tensor, inputs: Inputs, contract: Contract) -> Tensor:
    """The sizes of the terms of dg, relative to which its sums round, likewise."""
    if contract.gate == "log":
        return terms
    slope, undefined = _slope(contract, "g", inputs.g)
    # A size: slopes of activated gates are negative, and a right kernel in chunks was rejected.
    return (terms * slope.abs()).masked_fill(undefined, 0.0)


def _slope(contract: Contract, source: str, canonical: Tensor) -> tuple[Tensor, Tensor]:
    """d canonical / d received, and where there is none: it is 0 there."""
    handed = as_handed(contract, source, canonical)
    slope = codec(contract, source).slope(handed)
    undefined = ~torch.isfinite(slope)
    if source == "g" and contract.gate == "decay":
        undefined |= handed < contract.accumulate.min_normal
    return slope.masked_fill(undefined, 0.0), undefined


def _scaled(exact: Enclosure, slope: Tensor, undefined: Tensor) -> Enclosure:
    high, rest = two_product(exact.high, slope)
    exact = Enclosure(
        high, torch.nan_to_num(rest) + exact.low * slope, exact.radius * slope.abs(), exact.zero
    )
    return replace(
        exact,
        high=high.masked_fill(undefined, 0.0),
        radius=exact.radius.masked_fill(undefined, 0.0),
    )
