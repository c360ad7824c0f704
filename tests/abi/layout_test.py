"""Checks the layout of the C interface's structs: fields stay where programs were compiled with them, and new ones come at the end.

usage: layout_test.py [--cc CC] [--update] C_API_H

Compares the offsets and sizes of all fields with layout.txt beside this file, which lists them in order. --update adds new structs, and
fields that are new at the end of a struct. No listed field may change, and structs without struct_size may not grow.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).with_name("layout.txt")
STRUCT = re.compile(r"typedef struct (scoremod_\w+) \{(.*?)\} \1;", re.DOTALL)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def fields_of(body):
    """The names of a struct's fields, in order."""
    declarations = (each.strip() for each in COMMENT.sub("", body).split(";"))
    return [re.search(r"(\w+)$", name.strip()).group(1) for each in declarations if each for name in each.split(",")]


def layout_of(header, cc):
    """[(struct, field, offset, size)], as the compiler has them; the field "sizeof" is the struct."""
    structs = {name: fields_of(body) for name, body in STRUCT.findall(header.read_text(encoding="utf-8"))}
    lines = []
    for name, fields in structs.items():
        lines += [f'printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));' for field in fields]
        lines.append(f'printf("{name} sizeof 0 %zu\\n", sizeof({name}));')
    program = f'#include <stdio.h>\n#include "{header}"\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        source, executable = Path(folder, "layout.c"), Path(folder, "layout")
        source.write_text(program)
        subprocess.run([cc, "-std=c99", "-o", executable, source], check=True)
        printed = subprocess.run([executable], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in printed.splitlines())
    return [(struct, field, int(offset), int(size)) for struct, field, offset, size in rows]


def changes(golden, found):
    """The rows of `golden` that are gone or moved, and the structs that grew though they may not."""
    problems = [f"expected {' '.join(map(str, row))}, found another place, or none" for row in golden if row[1] != "sizeof" and row not in found]
    growing = {struct for struct, field, offset, _ in found if field == "struct_size" and offset == 0}
    known = {struct for struct, *_ in golden}
    for struct in known - growing:
        before = {row for row in golden if row[0] == struct}
        problems += [
            f"{struct} has no struct_size and may not change; found {' '.join(map(str, row))}" for row in found if row[0] == struct and row not in before
        ]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("header", type=Path)
    options = parser.parse_args()
    found = layout_of(options.header.resolve(), options.cc)
    golden = []
    if GOLDEN.exists():
        rows = (line.split() for line in GOLDEN.read_text().splitlines())
        golden = [(struct, field, int(offset), int(size)) for struct, field, offset, size in rows]
    problems = changes(golden, found)
    if len(found) < 50:
        problems.append(f"expected at least 50 fields in {options.header}, found {len(found)}")
    if not problems and options.update:
        GOLDEN.write_text("".join(" ".join(map(str, row)) + "\n" for row in found))
    elif not problems and found != golden:
        problems.append("fields were added: run this with --update, and commit layout.txt with the header")
    print("\n".join(problems) or f"{len(found)} places, all as they were")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
