"""One interpreter per process, and what is refused."""

from __future__ import annotations

from tests.adapters.triton_interpreter.processes import interpreting, printed

pytestmark = interpreting


def test_a_process_has_one_interpreter_for_one_backend() -> None:
    seen = printed("observe", "refusals")["refusals"]
    assert seen["same"] and seen["autotune"] == 0
    assert "interprets kernels for npu, wanted cuda: use one process for each" in seen["cuda"]
    assert "wanted one of cuda, npu, got 'tpu'" in seen["tpu"]
    assert "leave it False" in seen["tf32"]


def test_a_triton_that_was_imported_to_compile_is_refused() -> None:
    seen = printed("observe", "imported_before")["imported_before"]
    assert "set TRITON_INTERPRET=1 first" in seen["without the switch"]
    assert "was imported to compile" in seen["with a late switch"]
