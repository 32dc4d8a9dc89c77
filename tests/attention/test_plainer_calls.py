"""Kernels that take one query token, or requests with keys alone, are tested by the rules of calls.

They were not where the problem of a rule has two query tokens or a request without keys: one rule
of 36 was left, and it is about sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from torch import Tensor

import kdaverify as kv
from kdaverify.checks.calls.questions import questions
from kdaverify.checks.status import Status
from tests.checks.ruled import statuses
from tests.operators.attention.ports import RIGHT, adapter

Supports = Callable[[Any], str | None]
RULES: Final = ("edited-values", "repeated", "unwritten", "view-sliced", "copies", "nan-shows")


def one_query(problem: Any) -> str | None:
    return None if problem.s_q == 1 else "one query token"


def some_keys(problem: Any) -> str | None:
    return None if all(s_k for _, s_k in problem.pairs) else "keys for every request"


def both(problem: Any) -> str | None:
    return one_query(problem) or some_keys(problem)


def square(problem: Any) -> str | None:
    return None if all(s_q == s_k for s_q, s_k in problem.pairs) else "as many queries as keys"


TAKEN: Final[dict[str, tuple[str, Supports]]] = {
    "decode, one query": ("mla_decode", one_query),
    "decode, keys": ("mla_decode", some_keys),
    "decode, both": ("mla_decode", both),
    "one query": ("attention", one_query),
    "square": ("attention", square),
}


@pytest.mark.parametrize("name", TAKEN)
def test_they_are_tested_by_nearly_every_rule_and_pass(name: str) -> None:
    op, supports = TAKEN[name]
    port = adapter(op, RIGHT, supports=supports)
    every = {one.rule.name for one in questions(adapter(op, RIGHT), "smoke")}
    assert len(every - {one.rule.name for one in questions(port, "smoke")}) <= 3
    for rule, found in statuses(port, RULES).items():
        assert found <= {Status.PASS, Status.SKIP}, rule


def test_a_decode_of_one_query_that_edits_its_cache_is_found() -> None:
    def edits(
        q: Tensor,
        cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        *,
        d_v: int,
        softmax_scale: float,
    ) -> Any:
        found = RIGHT.decode(
            q, cache, block_table, cache_seqlens,
            d_v=d_v, softmax_scale=softmax_scale, causal=False,
        )  # fmt: skip
        cache[:, 0].mul_(2)
        return found

    port = kv.kernel(op="mla_decode", dtypes=("bf16",), supports=one_query)(edits)
    assert Status.MUTATED_INPUT in statuses(port, ("repeated",))["repeated"]


def test_a_port_without_the_restriction_keeps_its_problems() -> None:
    problems = {one.problem for one in questions(adapter("mla_decode", replace(RIGHT)), "smoke")}
    assert all(problem.s_q > 1 for problem in problems if problem.k_lengths == (5, 0, 2))
