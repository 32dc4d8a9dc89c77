"""Runs exported calls through your function, called as the manifest says (positional, keywords, returned); run again, it goes on."""
import argparse, functools, hashlib, importlib, json, os, pathlib, platform, sys, traceback

def find(place):
    path, _, name = place.rpartition(":")
    sys.path.insert(0, str(pathlib.Path(path).parent))
    return functools.reduce(getattr, name.split("."), importlib.import_module(path.rsplit("/", 1)[-1].removesuffix(".py")))

def answer(call, signature, functions, framework, about, folder):
    output, error, part = (folder / "outputs" / (call["file"] + ending) for ending in ("", ".error", ".part"))
    part.write_text("the process ended during this call")
    try:
        io = importlib.import_module("safetensors." + ("flax" if framework == "jax" else framework))
        files, names = [folder / "inputs" / call["file"], *(folder / "outputs" / file for file in dict(call["links"].values()))], signature["returned"]
        x = {**io.load_file(files[0]), **call["values"], **{name: io.load_file(folder / "outputs" / file)[output] for name, (file, output) in call["links"].items()}}
        returned = functions[call["entry"]](*map(x.get, signature["positional"]), **{name: x.get(name) for name in signature["keywords"]})
        parts = returned if isinstance(returned, (tuple, list)) and len(returned) == len(names) else (returned,)
        outputs = returned if isinstance(returned, dict) else {name: y for name, y in zip(names, parts) if y is not None}
        own = (lambda x: x.detach().clone().contiguous()) if framework == "torch" else importlib.import_module("numpy").ascontiguousarray
        answers = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        about = {**about, "device": str(getattr([*outputs.values(), None][0], "device", "cpu")), "answers": answers}
        io.save_file({name: own(y) for name, y in outputs.items()}, part, metadata=about)
        os.replace(part, output)
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        error.write_text(f"{type(e).__name__}: {e} ({pathlib.Path(at.filename).name}:{at.lineno} in {at.name})\n\n{traceback.format_exc()}")

if __name__ == "__main__":
    parser, here = argparse.ArgumentParser(description=__doc__), pathlib.Path(__file__).parent
    parser.add_argument("function", help="my_module:my_function or path/my_file.py:my_function")
    parser.add_argument("--framework", choices=("torch", "jax", "numpy"), default="torch", help="whose arrays your function takes")
    parser.add_argument("--step", help="another function for the calls that decode one token")
    chosen, manifest = parser.parse_args(), json.loads((here / "manifest.json").read_text())
    functions, module = {"forward": find(chosen.function), "step": find(chosen.step or chosen.function)}, importlib.import_module(chosen.framework)
    about = {"function": chosen.function, "python": platform.python_version(), chosen.framework: module.__version__}
    calls = [call for case in manifest["cases"] for call in case["calls"] if not (here / "outputs" / call["file"]).exists()]
    for number, call in enumerate(sorted(calls, key=lambda call: (here / "outputs" / (call["file"] + ".part")).exists()), 1):
        answer(call, manifest, functions, chosen.framework, about, here)
        print(f"\r{number} of {len(calls)} calls", end="", flush=True)
    print(f"\n{sum(not (here / 'outputs' / call['file']).exists() for call in calls)} failed; outputs/*.error says why")
