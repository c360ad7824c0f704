"""Interpreters that end after, or while, threads call attention. The bindings' tests run in two environments, and share this."""

import os
import subprocess
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1] / "python"
THREADS, CALLS = 4, 5
# How the main thread ends -> what it does then, and what the others wait for before their last calls.
ENDS = {
    "joined": ("for thread in threads: thread.join()", "pass"),
    "still calling": ("pass", "threading.main_thread().join()"),
}
SCRIPT = """
import os, threading
{setup}
begun = threading.Barrier({threads} + 1)

def work():
    call()
    begun.wait()
    for _ in range({calls}): call()
    {wait}
    for _ in range({calls}): call()
    os.write(1, b"done ")

threads = [threading.Thread(target=work) for _ in range({threads})]
for thread in threads: thread.start()
begun.wait()
{end}
"""


def check(setup, end):
    """Runs an interpreter whose threads run call(), which the text `setup` defines. It must end with 0 and without a word, after all their calls."""
    at_end, wait = ENDS[end]
    script = SCRIPT.format(setup=setup, threads=THREADS, calls=CALLS, end=at_end, wait=wait)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(PYTHON), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert done.stdout.split() == ["done"] * THREADS, done.stdout
