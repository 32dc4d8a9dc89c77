"""Finding an implementation: by name, file, module or entry point;
every way of missing it says what to do.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.adapters import AdapterError, find, shipped
from kdaverify.adapters.shipped import SHIPPED

Write = Callable[..., Path]
PORT = """
import kdaverify as kv

@kv.kernel(name={name!r})
def {function}(q, k, v, g, beta):
    return v, None
"""
CLASS = """
from kdaverify.adapters import Adapter, Output

class Mine(Adapter):
    name, dtypes = "mine", ("fp32",)
    def contract(self, dtype): raise NotImplementedError
    def forward(self, inputs): return Output(None, None)
    def proof(self): return ""
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file under the working directory, which import paths do not outlive."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def put(name: str, *texts: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(texts))
        return path

    return put


@pytest.mark.parametrize("name", list(SHIPPED))
def test_every_shipped_name_finds_the_adapter_of_that_name(name: str) -> None:
    assert find(name).name == name
    assert find(name) is find(name)


def test_the_listing_has_every_shipped_name_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [entry.name for entry in shipped()][: len(SHIPPED)] == list(SHIPPED)

    def nothing(module: str) -> None: ...

    monkeypatch.setattr("kdaverify.adapters.base.util.find_spec", nothing)
    missing = {entry.name: entry.missing for entry in shipped()}
    assert missing["eager"] is None
    assert (
        missing["onnxruntime"]
        == "onnx, onnxruntime not installed: pip install 'kdaverify[onnxruntime]'"
    )
    assert "deltanet-tpu" in str(missing["pallas"])


def test_a_file_with_one_adapter_needs_no_object(write: Write) -> None:
    write("port.py", PORT.format(name="my_port", function="chunk"))
    assert find("port.py").name == "my_port"
    assert find(f"{Path.cwd()}/port.py:chunk").name == "my_port"


def test_an_adapter_class_is_found_and_made(write: Write) -> None:
    write("cls.py", CLASS)
    assert find("cls.py").name == find("cls.py:Mine").name == "mine"
    write("instance.py", CLASS, "THE_ONE = Mine()")
    assert find("instance.py").name == "mine"


def test_two_files_of_one_name_do_not_collide_and_an_edited_file_is_read_again(
    write: Write,
) -> None:
    write("a/port.py", PORT.format(name="first", function="chunk"))
    write("b/port.py", PORT.format(name="second", function="chunk"))
    assert [find("a/port.py").name, find("b/port.py").name, find("a/port.py").name] == [
        "first",
        "second",
        "first",
    ]
    write("a/port.py", PORT.format(name="edited", function="chunk"))
    assert find("a/port.py").name == "edited"


def test_a_file_may_import_its_neighbour(write: Write) -> None:
    write("deep/neighbour_of_port.py", "NAME = 'from the neighbour'")
    write(
        "deep/importing.py",
        PORT.format(name="x", function="chunk"),
        "import neighbour_of_port",
        "chunk.name = neighbour_of_port.NAME",
    )
    assert find("deep/importing.py").name == "from the neighbour"


def test_a_module_is_found_with_and_without_object(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("pack_of_ports/__init__.py")
    write("pack_of_ports/tpu.py", PORT.format(name="tpu", function="chunk"))
    monkeypatch.syspath_prepend(tmp_path)
    assert find("pack_of_ports.tpu").name == find("pack_of_ports.tpu:chunk").name == "tpu"
    with pytest.raises(
        AdapterError, match=r"no module named pack_of_ports\.npu; install it, or say path\.py"
    ):
        find("pack_of_ports.npu:chunk")


def test_an_entry_point_is_found_by_name_and_listed(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("plugged_port.py", PORT.format(name="plugged", function="chunk"))
    write("plugged-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    points = (
        "[kdaverify.adapters]\nplugged = plugged_port:chunk\nbroken = no_such_module_here:chunk\n"
    )
    write("plugged-1.0.dist-info/entry_points.txt", points)
    monkeypatch.syspath_prepend(tmp_path)
    assert find("plugged").name == "plugged"
    listed = {entry.name: entry for entry in shipped()}
    assert listed["plugged"].origin == "plugged_port:chunk" and listed["plugged"].missing is None
    assert "no module named no_such_module_here" in str(listed["broken"].missing)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("eagre", "no implementation named 'eagre'; did you mean eager"),
        ("zzz", "names of `kdaverify list impls`"),
        ("nowhere.py", "nowhere.py: no such file"),
        ("kdaverify.nowhere", "no module named kdaverify.nowhere"),
        ("a b:c", "wanted NAME, path.py[:object] or package.module[:object]"),
        ("kdaverify.adapters.eager:EAGR", "has no object 'EAGR'; did you mean EAGER?"),
        (
            "kdaverify.adapters.eager:run_form",
            "wanted an adapter, got function; decorate it with @kdaverify.kernel",
        ),
        (
            "kdaverify.adapters.eager",
            (
                "holds several adapters: EAGER, EAGER_RECURRENT; name one, such as"
                " kdaverify.adapters.eager:EAGER"
            ),
        ),
        ("kdaverify.adapters.base", "holds no adapter; decorate your kernel"),
    ],
)
def test_what_cannot_be_found_says_what_to_do(spec: str, said: str) -> None:
    with pytest.raises(AdapterError) as caught:
        find(spec)
    assert said in str(caught.value)


def test_the_name_of_a_file_without_its_ending_is_recognised(write: Write) -> None:
    write("port.py", PORT.format(name="p", function="chunk"))
    with pytest.raises(AdapterError, match=r"the file is port\.py"):
        find("port")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "x = 1\ny = 1 / 0\n",
            "raised at import, broken.py line 2: y = 1 / 0: ZeroDivisionError: division by zero",
        ),
        ("import no_such_vendor\n", "broken.py line 1: import no_such_vendor: ModuleNotFoundError"),
        ("def f(:\n", "broken.py: not valid Python: SyntaxError"),
        ("raise SystemExit(3)\n", "broken.py line 1: raise SystemExit(3): SystemExit: 3"),
        ("class A: pass\n", "broken.py: holds no adapter"),
        (
            "def a(q): ...\ndef b(q): ...\n",
            "defines a, b: for the one to judge write, for example, b = kdaverify.kernel(...)(b)",
        ),
        (
            "class Port:\n    def __call__(self, q): ...\n",
            "it defines Port(): write port = kdaverify.kernel(...)(Port())",
        ),
        (
            PORT.format(name="a", function="one") + "import torch\none = torch.compile(one)\n",
            "one is a function around an adapter: apply kdaverify.kernel last",
        ),
        (
            PORT.format(name="a", function="one") + PORT.format(name="b", function="two"),
            "holds several adapters: one, two",
        ),
        (
            "import kdaverify as kv\n@kv.kernel(layout='x')\ndef f(q, k, v, g, beta): ...\n",
            "line 2: @kv.kernel(layout='x'): AdapterError",
        ),
        (CLASS + "    def __init__(self, size): ...\n", "making the adapter failed: TypeError"),
    ],
)
def test_a_broken_file_names_the_line_and_what_it_said(write: Write, text: str, said: str) -> None:
    write("broken.py", text)
    # a failed import leaves nothing behind that would make the second try look right
    for _ in range(2):
        with pytest.raises(AdapterError) as caught:
            find("broken.py")
        assert said in str(caught.value)


def test_finding_and_listing_import_no_vendor_framework() -> None:
    code = """
import sys, kdaverify.adapters as a
a.shipped(); [a.find(name) for name in a.registry.SHIPPED]
vendors = "transformers", "jax", "onnx", "onnxruntime", "deltanet_tpu", "ml_dtypes"
print([v for v in vendors if v in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
