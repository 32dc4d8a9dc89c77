"""Activations of gates: there and back, slopes, names, and what they cannot reach."""

from __future__ import annotations

import pytest
import torch

from oracles.gate_activation import (
    FORMS,
    A_log_of,
    Form,
    GateActivation,
    activation_of,
    dt_bias_of,
    gate_codec,
)

PARAMETERS = [("A_log", "dt_bias"), ("A_log",), ("dt_bias",), ()]


def gates(activation: GateActivation) -> torch.Tensor:
    """[T, HV, K] over the whole of what it reaches."""
    deepest, weakest = activation.reach
    sizes = torch.logspace(0, 1, 60, base=abs(deepest / weakest), dtype=torch.float64)
    return (weakest * sizes).clamp(min=deepest).reshape(5, 3, 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_x_stands_for_the_gate_that_it_was_made_of(form: Form, parameters: tuple[str, ...]) -> None:
    activation = GateActivation(form, -3.0, parameters)
    g = gates(activation)
    x = activation.there(g)
    torch.testing.assert_close(activation.back(x), g, rtol=1e-11, atol=0)
    h = 1e-6
    slope = (activation.back(x + h) - activation.back(x - h)) / (2 * h)
    torch.testing.assert_close(activation.slope(x), slope, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_formula_of_math_md(form: Form) -> None:
    activation, x = GateActivation(form, -3.0), torch.randn(4, 6, 5, dtype=torch.float64)
    a, b = A_log_of(6).double().exp()[:, None], dt_bias_of(6, 5).double()
    expected = {
        "softplus": lambda: -a * torch.log1p(torch.exp(x + b)),
        "bounded": lambda: -3 / (1 + torch.exp(-a * (x + b))),
    }[form]()
    torch.testing.assert_close(activation.back(x), expected, rtol=1e-12, atol=0)


def test_it_is_finite_where_exponentials_overflow() -> None:
    x = torch.tensor([[[1e4, -1e4, 800.0, float("nan")]]], dtype=torch.float64)
    found = GateActivation("softplus").back(x)
    assert found.isfinite().tolist() == [[[True, True, True, False]]]


def test_parameters_differ_between_neighbours_and_do_not_depend_on_the_sizes() -> None:
    A_log, dt_bias = A_log_of(4), dt_bias_of(4, 8)
    assert (A_log.diff() != 0).all() and (dt_bias.diff(dim=0) != 0).all()
    assert (dt_bias.diff(dim=1) != 0).all()
    assert torch.equal(A_log_of(2), A_log[:2]) and torch.equal(dt_bias_of(2, 3), dt_bias[:2, :3])
    assert torch.equal(A_log.half().float(), A_log) and torch.equal(dt_bias.bfloat16(), dt_bias)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_a_name_says_it_all(form: Form, parameters: tuple[str, ...]) -> None:
    activation = GateActivation(form, -2.5, parameters)
    assert activation_of(activation.name) == activation
    assert gate_codec(activation.name).converts


def test_other_names_are_those_of_codecs() -> None:
    assert activation_of("log2") is None and not gate_codec("log").converts
    with pytest.raises(ValueError, match="gate: wanted one of log, log2, decay, softplus, bounded"):
        activation_of("relu")
    with pytest.raises(ValueError, match="lower_bound: wanted a negative number, got 0"):
        GateActivation("bounded", 0.0)
    with pytest.raises(ValueError, match="lower_bound"):
        activation_of("bounded(nan,A_log)")
