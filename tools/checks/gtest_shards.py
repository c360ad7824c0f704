"""Programs of GoogleTest in as many processes as there are cores, and filters of their tests by the folders of the sources."""

import os
import re
import subprocess


def suites_of(folder):
    """The names of GoogleTest's suites whose tests stand below a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.cpp"))] if folder.is_dir() else []
    return {name for text in texts for name in re.findall(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),", text, re.MULTILINE)}


def filter_of(suites):
    """GoogleTest's filter of all tests of these suites, whatever parameters they have."""
    return ":".join(f"{name}.*:*/{name}.*:{name}/*" for name in sorted(suites))


def without_backends(root):
    """The filter of all tests but the unit tests of backends, which take most of the time."""
    return f"*-{filter_of(suites_of(root / 'tests/unit/backend'))}"


def begin(program, tests, output=None, **environment):
    """The processes that run a filter's tests between them, without files of earlier runs. output: as subprocess takes stdout, for both streams."""
    count, command = os.cpu_count() or 1, [program, "--gtest_brief=1", f"--gtest_filter={tests}"]
    every = {**os.environ, "SCOREMOD_CACHE": "off", "GTEST_TOTAL_SHARDS": str(count), **environment}
    return [subprocess.Popen(command, stdout=output, stderr=output, env={**every, "GTEST_SHARD_INDEX": str(i)}) for i in range(count)]
