"""A plugin of pytest that repeats the tests that draw a seed, each time with a new one, until a time is up.

pytest -p soak_plugin --soak SECONDS [--soak-current FILE]: tools/checks/soak.py calls it so. A test draws a seed where it, a fixture of it or a
function of the tests that one of them calls reads SEED or SCOREMOD_TEST_SEED. Those that hold only once in a process are marked
`once_a_process(reason)`, and left out. FILE always names the test that runs, for whoever finds the process dead.
"""

import inspect
import os
import random
import secrets
import shlex
import sys
import time
from pathlib import Path
from types import CodeType, FunctionType

import pytest

VARIABLE = "SCOREMOD_TEST_SEED"
# A test that failed so often is known to be wrong, and its output would hide the others'.
MOST_FAILURES = 3


def pytest_addoption(parser):
    parser.addoption("--soak", type=float, metavar="SECONDS", help="repeat the tests that draw a seed for SECONDS, each time with a new one")
    parser.addoption("--soak-current", type=Path, metavar="FILE", help="write into FILE the command that repeats the test that runs")


def pytest_configure(config):
    if config.getoption("--soak"):
        config.pluginmanager.register(Soak(config), "soak")


def draws_seed(function, seen=None):
    """Whether a function of the tests, or one of the same modules that it calls, reads the seed of the run."""
    seen = set() if seen is None else seen
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType) or function in seen:
        return False
    seen.add(function)
    for code in _codes(function.__code__):
        if "SEED" in code.co_names or any(isinstance(each, str) and each.startswith(VARIABLE) for each in code.co_consts):
            return True
        if any(draws_seed(function.__globals__[name], seen) for name in code.co_names if _is_of_tests(function.__globals__.get(name))):
            return True
    return False


def _codes(code):
    """The code of a function and of all that are made in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _is_of_tests(value):
    return isinstance(value, FunctionType) and value.__module__.startswith(("test_", "conftest", "dense_", "modifiers"))


def functions_of(item):
    """A test's function and those of its fixtures."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return [item.function, *(definition.func for definitions in fixtures for definition in definitions)]


def give_seed(seed):
    """Makes it the seed of the tests that begin from here on: most modules read the variable when they are imported."""
    os.environ[VARIABLE] = str(seed)
    for module in list(sys.modules.values()):
        if isinstance(getattr(module, "SEED", None), int) and Path(getattr(module, "__file__", None) or "").name.startswith(("test_", "conftest")):
            module.SEED = seed


def forget_compiled():
    """Drops what the frameworks have compiled: memory grows with it, and Dynamo refuses to compile one function many times."""
    for module, name in (("torch._dynamo", "reset"), ("jax", "clear_caches")):
        if module in sys.modules:
            getattr(sys.modules[module], name)()


def command_of(nodeid, seed):
    """A command that repeats a test with a seed, from the folder of the repository."""
    variables = {name: os.environ.get(name, "") for name in ("PYTHONPATH", "SCOREMOD_BUILD_DIR", "SCOREMOD_LIBRARY")}
    of_plugin = str(Path(__file__).resolve().parent)
    variables["PYTHONPATH"] = os.pathsep.join(path for path in variables["PYTHONPATH"].split(os.pathsep) if path != of_plugin)
    words = [f"{name}={shlex.quote(value)}" for name, value in {VARIABLE: str(seed), **variables}.items() if value]
    return " ".join([*words, shlex.quote(sys.executable), "-m pytest", shlex.quote(nodeid)])


class Soak:
    def __init__(self, config):
        self.config, self.seconds = config, config.getoption("--soak")
        self.seed, self.runs, self.tests, self.failures = 0, 0, 0, {}

    def pytest_collection_modifyitems(self, config, items):
        seeded = [item for item in items if any(map(draws_seed, functions_of(item))) and not item.get_closest_marker("once_a_process")]
        config.hook.pytest_deselected(items=[item for item in items if item not in seeded])
        items[:] = seeded
        self.tests = len(seeded)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        if session.testsfailed:
            raise session.Interrupted("tests could not be collected")
        end = time.monotonic() + self.seconds
        while modules := self.modules(session.items):
            for module in modules:
                if self.runs > 0 and time.monotonic() >= end:
                    return True
                self.run_module(module, end)
        return True

    def modules(self, items):
        """The tests by module, in an order of chance, without those that failed too often."""
        modules = {}
        for item in items:
            if self.failures.get(item.nodeid, 0) < MOST_FAILURES:
                modules.setdefault(item.path, []).append(item)
        return random.sample(list(modules.values()), len(modules))

    def run_module(self, items, end):
        """With one seed, which what its tests share is drawn with too."""
        self.seed = secrets.randbelow(2**31)
        give_seed(self.seed)
        for item, following in zip(items, [*items[1:], None]):
            if time.monotonic() >= end:
                following = None  # every fixture ends
            self.run(item, following)
            if following is None:
                break
        forget_compiled()

    def run(self, item, following):
        self.runs += 1
        current = self.config.getoption("--soak-current")
        if current is not None:
            current.write_text(command_of(item.nodeid, self.seed), encoding="utf-8")
        item._initrequest()  # what its fixtures gave the last time is forgotten
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failures[report.nodeid] = self.failures.get(report.nodeid, 0) + 1
            self.config.get_terminal_writer().line(f"FAILED: {command_of(report.nodeid, self.seed)}")

    def pytest_report_teststatus(self, report):
        """No letter for each test, of which there are many thousands; those that failed have a line."""
        return ("failed", "", "") if report.failed else ("", "", "")

    def pytest_terminal_summary(self, terminalreporter):
        failed = sum(self.failures.values())
        terminalreporter.write_line(f"{self.runs} runs of {self.tests} tests in {self.seconds:g} s, {failed} failed")
