"""Fixtures that count what is compiled, for the tests on the CPU and on a GPU."""

import pytest


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Nothing that was compiled before, by this test or another, is found."""
    import scoremod
    from scoremod.torch import eager_calls, execution, kept_traces

    for module in (eager_calls, execution, kept_traces):
        monkeypatch.setattr(module, "_kept", type(module._kept)(1024))
    monkeypatch.setattr(execution, "_open", type(execution._open)(256))
    scoremod.cache.clear()


@pytest.fixture
def compiles(nothing_compiled):
    """A function that gives how many problems were compiled since the test began."""
    import scoremod

    before = scoremod.cache.statistics()["compiled"]["problems"]
    return lambda: scoremod.cache.statistics()["compiled"]["problems"] - before
