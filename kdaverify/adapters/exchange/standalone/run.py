"""Runs exported calls through your function as manifest.json says; run again, it goes on."""

import argparse, functools, hashlib, importlib, json, os, pathlib, platform, sys, traceback


def find(place):
    path, _, name = place.rpartition(":")
    sys.path.insert(0, str(pathlib.Path(path).parent))
    module = importlib.import_module(path.rsplit("/", 1)[-1].removesuffix(".py"))
    return functools.reduce(getattr, name.split("."), module)


def named(returned, names):
    """What a function returned, by the names of the outputs."""
    if isinstance(returned, dict):
        return returned
    several = isinstance(returned, (tuple, list)) and len(returned) == len(names)
    parts = returned if several else (returned,)
    return {name: y for name, y in zip(names, parts) if y is not None}


def dense(framework):
    """Makes a dense copy of an array of the framework."""
    if framework == "torch":
        return lambda x: x.detach().clone().contiguous()
    return importlib.import_module("numpy").ascontiguousarray


def answer(call, signature, functions, framework, about, folder):
    done = folder / "outputs"
    output, error, part = (done / (call["file"] + ending) for ending in ("", ".error", ".part"))
    part.write_text("the process ended during this call")
    try:
        io = importlib.import_module("safetensors." + ("flax" if framework == "jax" else framework))
        links = call["links"]
        files = [folder / "inputs" / call["file"], *(done / file for file in dict(links.values()))]
        x = {**io.load_file(files[0]), **call["values"]}
        x.update((name, io.load_file(done / file)[key]) for name, (file, key) in links.items())
        by_name = {name: x.get(name) for name in signature["keywords"]}
        returned = functions[call["entry"]](*map(x.get, signature["positional"]), **by_name)
        outputs, own = named(returned, signature["returned"]), dense(framework)
        answers = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        device = str(getattr([*outputs.values(), None][0], "device", "cpu"))
        about = {**about, "device": device, "answers": answers}
        io.save_file({name: own(y) for name, y in outputs.items()}, part, metadata=about)
        os.replace(part, output)
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{pathlib.Path(at.filename).name}:{at.lineno} in {at.name}"
        error.write_text(f"{type(e).__name__}: {e} ({where})\n\n{traceback.format_exc()}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("function", help="my_module:my_function or path/my_file.py:my_function")
    frameworks, whose = ("torch", "jax", "numpy"), "whose arrays your function takes"
    parser.add_argument("--framework", choices=frameworks, default="torch", help=whose)
    parser.add_argument("--step", help="another function for the calls that decode one token")
    return parser.parse_args()


def main(here):
    chosen, manifest = arguments(), json.loads((here / "manifest.json").read_text())
    step = find(chosen.step or chosen.function)
    functions, name = {"forward": find(chosen.function), "step": step}, chosen.framework
    version = importlib.import_module(name).__version__
    about = {"function": chosen.function, "python": platform.python_version(), name: version}
    every = [call for case in manifest["cases"] for call in case["calls"]]
    calls = [call for call in every if not (here / "outputs" / call["file"]).exists()]
    # What ended the process goes last, so that a second run answers all others first.
    calls.sort(key=lambda call: (here / "outputs" / (call["file"] + ".part")).exists())
    for number, call in enumerate(calls, 1):
        answer(call, manifest, functions, name, about, here)
        print(f"\r{number} of {len(calls)} calls", end="", flush=True)
    failed = sum(not (here / "outputs" / call["file"]).exists() for call in calls)
    print(f"\n{failed} failed; outputs/*.error says why")


if __name__ == "__main__":
    main(pathlib.Path(__file__).parent)
