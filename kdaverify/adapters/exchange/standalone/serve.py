"""Answers calls one by one for the parent process, with run.py and serve_vjp.py beside it.

In comes a line of JSON for every call, out goes a line when it is answered; tensors lie in files.
Needs what run.py needs.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def main(
    folder: Path,
    kernel: str,
    others: dict[str, str],
    framework: str,
    signature: dict[str, list[str]],
) -> None:
    """Serves until the other end is gone.

    Args:
        others: the kernel's step and backward; "" for none of its own.
        signature: what it gets by place and by name, and what it returns.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a kernel prints is no reply
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    run, vjp = importlib.import_module("run"), importlib.import_module("serve_vjp")
    functions = {"forward": run.find(kernel), "step": run.find(others["step"] or kernel)}
    functions["vjp"] = vjp.vjp_of(
        functions["forward"],
        run.find(others["backward"]) if others["backward"] else None,
        framework,
    )
    about = {
        "function": kernel,
        "python": platform.python_version(),
        framework: importlib.import_module(framework).__version__,
    }
    replies.write(json.dumps(about) + "\n")
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(calls,), daemon=True).start()
    while True:
        call = calls.get()
        with vjp.wide_types(framework, folder / "inputs" / call["file"]):
            loss = ["do", "d_final_state"] if call["entry"] == "vjp" else []
            taken = {**signature, "keywords": [*signature["keywords"], *loss]}
            run.answer(call, taken, functions, framework, about, folder)
        replies.write("\n")


def listen(calls: Any) -> None:
    """Takes calls in; ends the process once the other end is gone, whatever the kernel does."""
    for line in sys.stdin:
        calls.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    place, of_kernel, of_step, of_backward, chosen, taken = sys.argv[1:]
    main(
        Path(place),
        of_kernel,
        {"step": of_step, "backward": of_backward},
        chosen,
        json.loads(taken),
    )
