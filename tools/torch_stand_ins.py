#!/usr/bin/env python3
"""Makes stand-ins for the CUDA libraries that PyTorch's wheel is linked with, so that the wheel alone can be imported, for the CPU.

usage: torch_stand_ins.py SITE_PACKAGES

The libraries of PyPI's wheel for Linux need some fourteen libraries of NVIDIA, 2.6 GB, which nothing uses on a CPU. For each this compiles one of a few kB
beside the wheel's own, where the loader looks first, with the functions that those name. Each function says that there is no device. Prints the names.
Needs gcc and readelf.
"""

import contextlib
import ctypes
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE; in the other libraries' enumerations it is an error, too.
NO_DEVICE = 100
# The libraries that get a stand-in, even where the real one is installed: that may be of another version.
NVIDIA = re.compile(r"lib(cu(?!rl)|nccl|nv)")

_NEEDED = re.compile(r"\(NEEDED\).*\[(?P<name>[^]]+)\]")
_VERSION_FILE = re.compile(r"Version: \d+\s+File: (?P<file>\S+)")
_VERSION_NAME = re.compile(r"Name: (?P<name>\S+)\s+Flags: .*Version: (?P<number>\d+)")
_SYMBOL = re.compile(r"\s(?P<type>\w+)\s+\w+\s+\w+\s+UND\s+(?P<name>[^@\s]+)@(?P<version>\S+)\s+\((?P<number>\d+)\)")


def readelf(option, library):
    return subprocess.run(["readelf", "-W", option, str(library)], check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library):
    return [match["name"] for match in map(_NEEDED.search, readelf("-d", library)) if match]


def version_files(library):
    """Number of a version -> the library that it is asked of."""
    files, file = {}, None
    for line in readelf("-V", library):
        if match := _VERSION_FILE.search(line):
            file = match["file"]
        elif (match := _VERSION_NAME.search(line)) and file:
            files[match["number"]] = file
    return files


def named_symbols(library):
    """(library that has it, version, symbol, whether it is data) of every symbol that a library asks of another by a version."""
    files = version_files(library)
    for match in filter(None, map(_SYMBOL.search, readelf("--dyn-syms", library))):
        if match["number"] in files:
            yield files[match["number"]], match["version"], match["name"], match["type"] == "OBJECT"


def plain_symbols(library):
    """(defined, wanted): names of the symbols without a version that a library has, and that it needs of others."""
    defined, wanted = set(), set()
    for line in readelf("--dyn-syms", library):
        fields = line.split()
        if len(fields) == 8 and "@" not in fields[7]:
            if fields[6] != "UND":
                defined.add(fields[7])
            elif fields[4] == "GLOBAL":
                wanted.add(fields[7])
    return defined, wanted


def in_system(libraries):
    """A function: whether Python, or one of these libraries of the system as the loader names them, has a symbol."""
    loaded = [ctypes.CDLL(None)]
    for name in libraries:
        with contextlib.suppress(OSError):
            loaded.append(ctypes.CDLL(name))
    return lambda symbol: any(hasattr(library, symbol) for library in loaded)


def definition(symbol, is_data):
    """A stand-in for one symbol: a status of its library, or the text of one."""
    if is_data:
        return f"char {symbol}[256];"
    if re.search(r"(ErrorString|ErrorName|StatusString|StatusName)$|[gG]etErrorString", symbol):
        return f'const char* {symbol}(void) {{ return "no CUDA-capable device is detected (a stand-in)"; }}'
    return f"long {symbol}(void) {{ return {NO_DEVICE}; }}"


def compile_stand_in(folder, name, versions):
    """versions: version -> {symbol: whether it is data}."""
    source, script, seen = [], [], set()
    for version, symbols in sorted(versions.items()):
        if version:
            script.append(f"{version} {{ global: {' '.join(f'{symbol};' for symbol in sorted(symbols))} }};")
        for symbol, is_data in sorted(symbols.items()):
            if symbol not in seen:
                source.append(definition(symbol, is_data))
                seen.add(symbol)
    with tempfile.TemporaryDirectory() as made:
        text, exports = Path(made, "stand_in.c"), Path(made, "exports")
        text.write_text("\n".join(source) + "\n")
        exports.write_text("\n".join(script) + "\n")
        linked = [f"-Wl,--version-script={exports}"] if script else []
        # The compiler's knowledge of built-in functions doesn't matter: nobody calls these with success.
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{name}", *linked, "-o", str(folder / name), str(text)]
        subprocess.run(command, check=True)


def stand_ins_in(folder):
    """The stand-ins of an earlier run."""
    return [library.name for library in folder.glob("*.so*") if NVIDIA.match(library.name)]


def wanted_symbols(libraries):
    """Name of a library to stand in for -> version -> {symbol: whether it is data}; the version is "" for symbols without one."""
    wanted = {library: needed(library) for library in libraries}
    names = {name for each in wanted.values() for name in each}
    missing = {name for name in names if NVIDIA.match(name)}
    versions = {name: defaultdict(dict) for name in missing}
    plain = {library: plain_symbols(library) for library in libraries}
    own = set().union(*(defined for defined, _ in plain.values()))
    has_system = in_system(names - missing)
    for library in libraries:
        for file, version, symbol, is_data in named_symbols(library):
            if file in missing:
                versions[file][version][symbol] = is_data
    # Which of its libraries has a symbol without a version is not written anywhere, and the loader asks all of them.
    unversioned = [name for name in sorted(missing) if not versions[name]]
    for library, (_, symbols) in plain.items():
        place = next((name for name in unversioned if name in wanted[library]), None)
        if place is not None:
            versions[place][""].update((symbol, False) for symbol in symbols - own if not has_system(symbol))
    return versions


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1], "torch", "lib")
    libraries = sorted(set(folder.glob("*.so*")) - {folder / name for name in stand_ins_in(folder)})
    versions = wanted_symbols(libraries)
    for name in sorted(versions):
        compile_stand_in(folder, name, versions[name])
        print(f"{name}: {len({symbol for symbols in versions[name].values() for symbol in symbols})} functions")


if __name__ == "__main__":
    main()
