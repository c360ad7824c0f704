"""Checks that libscoremod.so exports exactly the C functions that c_api.h declares, and no C++ name of a library used inside.

usage: exported_symbols_test.py [--nm NM] C_API_H LIBRARY
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

DECLARATION = re.compile(r"^SCOREMOD_C_API\s[^;(]*?\b(scoremod_\w+)\(", re.MULTILINE)
# Itanium C++ names of namespace scoremod, and instances of the standard library's templates, which are visible by default.
OURS = re.compile(r"^_Z(T[VTIS]|GV|Z)?N?K?(8scoremod|S[tabsiod])")
FOREIGN = ("nlohmann", "N3hwy", "cblas")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("header", type=Path)
    parser.add_argument("library")
    options = parser.parse_args()

    declared = set(DECLARATION.findall(options.header.read_text(encoding="utf-8")))
    listing = subprocess.run(
        [options.nm, "--dynamic", "--defined-only", "--format=posix", options.library],
        check=True,
        capture_output=True,
        text=True,
    )
    exported = {line.split()[0] for line in listing.stdout.splitlines()}
    plain = {name for name in exported if not name.startswith("_Z")}
    problems = [f"declared in {options.header.name} and not exported: {name}" for name in sorted(declared - plain)]
    problems += [f"exported and not declared in {options.header.name}: {name}" for name in sorted(plain - declared)]
    problems += [f"exported and not of scoremod: {name}" for name in sorted(exported - plain) if not OURS.match(name) or any(part in name for part in FOREIGN)]
    if len(declared) < 10:
        problems.append(f"expected at least 10 declarations in {options.header}, found {len(declared)}")
    print("\n".join(problems) or f"{len(declared)} C functions and {len(exported - plain)} C++ names, as declared")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
