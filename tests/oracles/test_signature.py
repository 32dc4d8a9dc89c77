"""The signature says of every tensor what code used to read off its name."""

from __future__ import annotations

import torch

from kdaverify.problems import Problem
from oracles.signature import CallSignature, Role, TensorRole
from oracles.tensors import COTANGENTS, FLOATING, GRADIENTS, OUTPUTS, SIGNATURE, TENSORS, TOKENS

PACK = Problem.model_validate(
    {
        "B": 1,
        "T": 9,
        "H": 1,
        "HV": 2,
        "K": 4,
        "V": 3,
        "lengths": (4, 0, 3),
        "dtype": "fp32",
        "seed": 1,
    }
    | {"gate": "mild", "key": "random", "beta": "uniform", "state": "random", "value": "normal"}
)


def test_every_tensor_has_the_shape_that_its_axes_say() -> None:
    x = PACK.inputs()
    assert {name: tuple(getattr(x, name).shape) for name in FLOATING} == {
        name: SIGNATURE.shape(name, x) for name in FLOATING
    }
    assert SIGNATURE.shape("o", x) == (1, 9, 2, 3)
    assert (
        SIGNATURE.shape("d_final_state", x) == SIGNATURE.shape("initial_state", x) == (3, 2, 4, 3)
    )


def test_roles_distinguish_states_from_tokens_in_outputs_and_gradients() -> None:
    states = [
        name for name in (*TENSORS, *OUTPUTS, *GRADIENTS, *COTANGENTS) if SIGNATURE.is_state(name)
    ]
    assert states == ["initial_state", "final_state", "d_initial_state", "d_final_state"]
    assert not SIGNATURE.is_state("Akk"), "tensors of stages are nobody's state"
    assert {GRADIENTS[name] for name in GRADIENTS} == {*FLOATING} and SIGNATURE.names(
        Role.TOKEN
    ) == TOKENS


def test_only_the_roles_tested_for_are_changed_and_absent_tensors_stay_absent() -> None:
    x = PACK.replace(state="absent").inputs()
    assert SIGNATURE.changed(x, torch.zeros_like, Role.STATE) == {}
    assert [*SIGNATURE.changed(x, torch.zeros_like, Role.OFFSETS)] == ["cu_seqlens"]
    assert [*SIGNATURE.tensors(x)] == [*TOKENS, "cu_seqlens"]


def test_another_operator_has_its_own() -> None:
    matmul = CallSignature(
        inputs=(
            TensorRole("a", Role.TOKEN, ("M", "K"), "da"),
            TensorRole("bias", Role.PARAMETER, ("N",), "dbias", optional=True),
        ),
        outputs=(TensorRole("y", Role.TOKEN, ("M", "N"), "dy"),),
    )
    assert (
        matmul.gradients == {"da": "a", "dbias": "bias"}
        and matmul.cotangents == {"dy": "y"}
        and matmul.returned == ("y",)
    )
