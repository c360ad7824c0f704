"""The command of the Python package: scoremod doctor, docs and draw are Python's; the compiled command, which a wheel carries, has the others."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from scoremod import compiled_command, diagnosis
from scoremod.attention import Attention
from scoremod.drawing import draw
from scoremod.errors import BugError, EnvironmentError, Error, InvalidArgumentError
from scoremod.library import load
from scoremod.pages import command_for, mentions, names_of, text, topics
from scoremod.scores import float_array

_EXIT_CODES = {InvalidArgumentError: 2, EnvironmentError: 4, BugError: 5}  # as of the compiled command
_NUMPY = {"f32": np.float32, "f16": np.float32, "bf16": np.float32, "i32": np.int32, "bool": np.bool_}


def main(arguments=None):
    """The exit code is that of the compiled command: 0, 2 for a mistake, 3 for what can't be done, 4 for the machine and 5 for a bug."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in compiled_command.COMMANDS:
        return compiled_command.run(arguments)
    first = f"{command_for('start')} prints a first example, and {command_for('problem')} what a problem file has."
    parser = argparse.ArgumentParser(prog="scoremod", description="Fused attention with programmable scores.", epilog=first)
    parser.add_argument("--version", action="store_true", help="print the library's version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, does in compiled_command.COMMANDS.items():
        commands.add_parser(name, help=does)
    drawing = commands.add_parser("draw", help="the tiles of a mask, and what becomes of scores")
    drawing.add_argument("problem", help=f"a problem file ({command_for('reference/problem')}), or - for the standard input")
    drawing.add_argument("-o", "--output", required=True, help="the picture: .png, .svg or .pdf")
    for name in ("batch", "head"):
        drawing.add_argument(f"--{name}", type=int, default=0)
    drawing.add_argument("--tile", type=int, help="the side of the mask's tiles")
    for name in ("queries", "keys"):
        drawing.add_argument(f"--{name}", type=_range, metavar="FIRST,COUNT", help=f"the {name} that are drawn; all without it")
    reading = commands.add_parser("docs", help="prints a page of the documentation, or the lines that have an id or words; without a topic their list")
    reading.add_argument("topic", nargs="?", help="a page's name, such as torch or reference/problem; or an id, such as no_device, or words of a message")
    looking = commands.add_parser("doctor", help="what scoremod finds on this machine, and what would run a causal call")
    looking.add_argument("--static", action="store_true", help="build and try nothing on the device")
    options = parser.parse_args(arguments)
    if options.command is None and not options.version:
        parser.print_help(sys.stderr)
        print("scoremod: expected a command, found none", file=sys.stderr)
        return 2
    try:
        if options.version:
            print(load().scoremod_version().decode())
            return 0
        if options.command == "doctor":
            print(diagnosis.report("static" if options.static else "verified"))
            return 0
        if options.command == "docs":
            print(_documentation(options.topic), end="")
            return 0
        problem, folder = _read(options.problem)
        arrays = operand_arrays(problem, folder)
        picture = draw(
            {name: problem[name] for name in problem if name not in ("inputs", "seed", "description", "$schema")}, arrays,
            batch=options.batch, head=options.head, tile=options.tile, queries=options.queries, keys=options.keys,
        )  # fmt: skip
        if made_up := [name for name in arrays if not {"npy", "values"}.intersection(problem.get("inputs", {}).get(name, {}))]:
            picture.suptitle(f"{picture.get_suptitle()}; random numbers: {', '.join(made_up)}", fontsize=10)
        picture.savefig(options.output, dpi=150)
    except Error as error:
        print(f"scoremod: {error}", file=sys.stderr)
        return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 3)
    except (OSError, ValueError) as error:  # a file, or what it holds
        print(f"scoremod: {error}", file=sys.stderr)
        return 2
    return 0


def _documentation(topic):
    """The list of all pages, a page, or the lines that have the topic's words."""
    if topic is None:
        return "".join(f"{name}\n" for name in topics())
    lines = "" if names_of(topic) or len(topic) < 4 else "".join(f"{name}: {line}\n" for name, line in mentions(topic))
    return lines or text(topic)


def _range(text):
    first, count = (int(part) for part in text.split(","))
    return first, count


def _read(path):
    """(problem, folder that its files are relative to)."""
    if path == "-":
        return json.loads(sys.stdin.read()), Path()
    return json.loads(Path(path).read_text(encoding="utf-8")), Path(path).parent


def operand_arrays(problem, folder):
    """name -> array of each operand, as the problem's `inputs` say. Random ones are other numbers than those that `scoremod run` takes."""
    fields = {name: value for name, value in problem.items() if name not in ("inputs", "seed", "description", "$schema")}
    random, inputs = np.random.default_rng(problem.get("seed", 0)), problem.get("inputs", {})
    specs = Attention(fields, backend="reference").problem["operands"]
    return {spec["name"]: _array(spec, inputs.get(spec["name"], {}), folder, random) for spec in specs}


def _array(spec, entry, folder, random):
    shape, kind = tuple(spec["shape"]), _NUMPY[spec["dtype"]]
    if "npy" in entry:
        return float_array(np.load(folder / entry["npy"]), spec["dtype"])
    if "values" in entry:
        return np.array(entry["values"], kind).reshape(shape)
    if kind is np.float32:
        return (random.normal(*entry["normal"], shape) if "normal" in entry else random.uniform(*entry.get("uniform", (0.25, 1.75)), shape)).astype(kind)
    if kind is np.bool_:
        return random.random(shape) < 0.75
    if "uniform" in entry:
        return random.integers(*entry["uniform"], shape, dtype=kind, endpoint=True)
    # Ids that start at 0 and grow along the last axis.
    starts = random.random(shape) < entry.get("segments", 4) / max(shape[-1] if shape else 1, 1)
    return starts.cumsum(axis=-1).astype(kind) if shape else np.zeros(shape, kind)


if __name__ == "__main__":
    sys.exit(main())
