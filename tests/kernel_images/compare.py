"""Tells whether two folders that scoremod_kernel_images wrote hold the same machine code.

usage: compare.py BEFORE AFTER

Each kernel's SASS is compared, whatever the order of kernels in a module and of modules. It prints the kernels that differ, and exits
with 1 if there are any, or if a file is in one folder only.
"""

import hashlib
import struct
import sys
from pathlib import Path


def modules(data):
    """The byte strings of a CBOR array."""
    count, at = data[0] & 0x1F, 1
    assert data[0] >> 5 == 4 and count < 24, "expected a short CBOR array"
    for _ in range(count):
        size, at = data[at] & 0x1F, at + 1
        width = {24: 1, 25: 2, 26: 4, 27: 8}.get(size, 0)
        if width:
            size, at = int.from_bytes(data[at : at + width], "big"), at + width
        yield data[at : at + size]
        at += size


def kernels(image):
    """name -> digest of the code, of the ELF sections .text.NAME of a cubin."""
    offset = struct.unpack_from("<Q", image, 0x28)[0]
    size, count, names_at = struct.unpack_from("<HHH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", image, offset + i * size) for i in range(count)]
    names = sections[names_at]
    found = {}
    for name, _, _, _, at, length in sections:
        begin = names[4] + name
        text = image[begin : image.index(b"\0", begin)].decode()
        if text.startswith(".text."):
            found[text.removeprefix(".text.")] = hashlib.sha256(image[at : at + length]).hexdigest()[:16]
    return found


def code_of(file):
    return {name: digest for module in modules(file.read_bytes()) for name, digest in kernels(module).items()}


def main(before, after):
    names = {file.name for folder in (before, after) for file in Path(folder).glob("*.cbor")}
    same = different = 0
    for name in sorted(names):
        files = [Path(folder) / name for folder in (before, after)]
        if not all(file.exists() for file in files):
            print(f"{name}: in one folder only")
            different += 1
            continue
        one, other = map(code_of, files)
        for kernel in sorted(one.keys() | other.keys()):
            if one.get(kernel) == other.get(kernel):
                same += 1
            else:
                different += 1
                print(f"{name}: {kernel}")
    print(f"{same} kernels have the same code, {different} differ")
    return different > 0 or same == 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
