"""The bindings on the path, the seed, and the record of what each case of the foreign suites came to."""

import json
import os
import re
import secrets
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT / "python"))

SEED = int(os.environ.get("SCOREMOD_TEST_SEED") or secrets.randbelow(2**31))
ROWS = pytest.StashKey[list]()
# Kinds of refusals: an id of a reason, or what no function of scoremod has.
REASONS = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/unsupported_reasons.md").read_text(encoding="utf-8"), re.MULTILINE)
KINDS = {*REASONS, "not offered"}


def pytest_report_header():
    return f"SCOREMOD_TEST_SEED={SEED}"


def pytest_addoption(parser):
    parser.addoption("--foreign-record", metavar="FILE", help="write what each case of the foreign suites came to into FILE (bench/foreign/record.py)")


def pytest_configure(config):
    config.stash[ROWS] = []


def pytest_sessionfinish(session):
    file = session.config.getoption("--foreign-record", default=None)
    if file:
        Path(file).write_text(json.dumps(session.config.stash[ROWS]), encoding="utf-8")


@pytest.fixture
def record(request):
    """record(suite, case, way, ratio): a case that is right. record(suite, case, way, refused="kind: word"): one that is refused."""

    def add(suite, case, way, ratio=None, refused=None):
        assert refused is None or refused.partition(": ")[0] in KINDS, refused
        row = {"suite": suite, "case": case, "way": way, "file": request.path.relative_to(FOLDER).as_posix()}
        row.update({"ratio": float(f"{ratio:.4g}")} if refused is None else {"refused": refused})
        request.config.stash[ROWS].append(row)

    return add


@pytest.fixture
def foreign_seed(request):
    """A number of the run's seed and the test's name, which a failed test prints."""
    print(f"SCOREMOD_TEST_SEED={SEED}")
    return (SEED + sum(map(ord, request.node.name))) % 2**31
