#!/usr/bin/env python3
"""Calls, captures, evicts and destroys attentions from many threads of one process at random, beside PyTorch's or JAX's own work in the same process.

usage: threads.py RECORD.json [--seconds N] [--threads N] [--device cpu] [--beside torch|jax] [--cases N] [--seed N] [--control]

Before the threads begin, each case's results are computed and held to dense attention in float64 (thread_cases.py). Each result of a thread has to have the same bits
where the call is deterministic, and else be as close to the truth as the data allows. A quarter of the time is a round. After each, all threads have ended, all caches
are emptied, and the process is looked at. After the last round it has no more files and threads than after the second one. Memory, objects and mappings may be 2 % more.
On a GPU the real plans of cuDNN and of scoremod's kernels are built, captured, replayed after eviction and destroyed. --control gives each case another one's results:
it is good where that is seen. The record gets one row for each device and what is beside. The exit code is 1 where a result is wrong, or anything raises or grows.
PYTHONPATH has the folder python, and SCOREMOD_LIBRARY names the library, as for tools/device/torch.sh.
"""

import argparse
import collections
import json
import os
import random
import secrets
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "tests/torch", "tools/device")]
ROUNDS = 4
GRAPHS = 3  # that a thread keeps to replay
SHOWN = 20  # of wrong results and of errors

# XLA makes a command buffer of each program, also of a small one.
if "jax" in sys.argv:
    os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_gpu_graph_min_graph_size=1").strip()
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

import long_run  # noqa: E402
import machine  # noqa: E402
import thread_cases  # noqa: E402
import threads_beside  # noqa: E402
import torch  # noqa: E402

from scoremod import cache  # noqa: E402


class Log:
    """Keeps counts of all that the threads did and saw."""

    def __init__(self):
        self._lock = threading.Lock()
        self.counts, self.wrong, self.errors = collections.Counter(), [], []

    def did(self, action, wrong=""):
        with self._lock:
            self.counts[action] += 1
            if wrong:
                self.wrong.append(f"{action}: {wrong}")
                self._show(self.wrong)

    def raised(self, action):
        with self._lock:
            self.errors.append(f"{action}: {traceback.format_exc(limit=-3)[-600:]}")
            self._show(self.errors)

    @staticmethod
    def _show(found):
        """Prints what was found last: a run that is ended from outside has no record."""
        if len(found) <= SHOWN:
            print(found[-1], flush=True)


class Worker(threading.Thread):
    """Does one action after the other until the round ends; the first error ends it, too."""

    def __init__(self, shared, number):
        super().__init__(name=f"worker {number}")
        self._shared, self._choose = shared, random.Random(f"{shared.seed} {shared.round} {number}")
        self._stream = torch.cuda.Stream() if shared.is_cuda else None
        self._graphs = []

    def run(self):
        kinds, weights = zip(*ACTIONS.items(), strict=True)
        while time.monotonic() < self._shared.end:
            (action,) = self._choose.choices(kinds, weights)
            if action in OF_GRAPHS and not self._shared.is_cuda:
                continue
            try:
                with torch.cuda.stream(self._stream):  # which does nothing without a stream
                    getattr(self, action)(self._choose.choice(self._shared.cases))
            except Exception:  # noqa: BLE001 - it is named in the record
                self._shared.log.raised(action)
                break
        self._graphs.clear()

    def forward(self, case):
        self._shared.log.did("forward", self._wrong(case, case.outputs()))

    def backward(self, case):
        self._shared.log.did("backward", self._wrong(case, case.results()))

    def refused(self, case):
        case.refused()
        self._shared.log.did("refused")

    def evict(self, case):
        what = self._choose.randrange(4)
        if what == 0:
            cache.clear()
        elif what == 1:
            cache.clear_files()
        else:
            cache.set_limits(attentions=self._choose.randrange(9), plans=self._choose.randrange(17))
        self._shared.log.did("evict")

    def destroy(self, case):
        """An attention of this thread's own, on the host, which goes as soon as it was called."""
        self._shared.log.did("destroy", case.wrong_on_host())

    def capture(self, case):
        """PyTorch captures one graph at a time in a process. Calls, evictions and compiles of other threads go on meanwhile, and captures of XLA's."""
        is_forward = self._choose.random() < 0.5
        run = case.outputs if is_forward else case.results
        with self._shared.capturing:
            run()  # builds what a capture cannot
            self._stream.synchronize()
            graph, results = threads_beside.captured(run)
        self._graphs = [*self._graphs[1 - GRAPHS :], (graph, case, results)]
        self._shared.log.did("capture")
        self.replay(case)

    def replay(self, case):
        if not self._graphs:
            return
        graph, case, results = self._choose.choice(self._graphs)
        for each in results:
            each.zero_()
        graph.replay()
        self._shared.log.did("replay", self._wrong(case, results))

    def _wrong(self, case, results):
        if self._stream is not None:
            self._stream.synchronize()
        return self._shared.expected[case.number].wrong(results)


ACTIONS = {"forward": 6, "backward": 6, "capture": 4, "replay": 6, "evict": 3, "destroy": 3, "refused": 1}
OF_GRAPHS = ("capture", "replay")


class Shared:
    """Holds all that the threads of a round share."""

    def __init__(self, options, cases):
        self.seed, self.cases, self.is_cuda, self.log = options.seed, cases, options.device == "cuda", Log()
        self.capturing, self.round, self.end = threading.Lock(), 0, 0.0
        # A control has another case's results.
        self.expected = {case.number: other for case, other in zip(cases, [*cases[1:], cases[0]] if options.control else cases, strict=True)}


def run_round(shared, options, beside):
    shared.round, shared.end = shared.round + 1, time.monotonic() + options.seconds / ROUNDS
    workers = [Worker(shared, number) for number in range(options.threads)] + beside.workers(shared)
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def looked_at(device):
    """The process with nothing kept but the cases and what PyTorch and the driver keep."""
    cache.clear()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    long_run.forget_beyond(0)
    statistics = cache.statistics()
    return long_run.sample(device) | {"attentions": statistics["attentions"]["entries"], "plans": statistics["plans"]["entries"]}


def run(options):
    """The record's row, without the machine."""
    device = torch.device(options.device)
    long_run.keep_at_most(4)
    beside = threads_beside.KINDS[options.beside](options.device)
    start = time.monotonic()
    cases, refused = thread_cases.prepared(options.cases, options.seed, options.device)
    prepared = round(time.monotonic() - start)
    print(f"{len(cases)} cases were right before, {refused} were refused, in {prepared} s", flush=True)
    shared, samples = Shared(options, cases), []
    for _ in range(ROUNDS):
        run_round(shared, options, beside)
        samples.append(looked_at(device))
        print(f"round {shared.round}: {dict(shared.log.counts)}, {len(shared.log.wrong)} wrong, {len(shared.log.errors)} errors", flush=True)
    found = {name: [samples[1][name], samples[-1][name]] for name in samples[0]}
    row = {"device": options.device, "beside": options.beside, "seed": options.seed, "threads": options.threads, "seconds": options.seconds}
    row |= {"cases": len(cases), "refused_before": refused, "actions": dict(sorted(shared.log.counts.items()))}
    row |= {"backends": dict(collections.Counter(str(case.backends) for case in cases)), "wrong": shared.log.wrong[:SHOWN], "errors": shared.log.errors[:SHOWN]}
    return row | {"wrong_count": len(shared.log.wrong), "second_and_last_round": found, "grew": long_run.grown(found)}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("--seconds", type=float, default=400, help="of all rounds; to prepare the cases takes more")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--beside", default="torch", choices=sorted(threads_beside.KINDS))
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--control", action="store_true")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, on {options.device}, beside {options.beside}", flush=True)
    with tempfile.TemporaryDirectory() as store:
        before = cache.directory()
        cache.set_directory(store)
        try:
            row = run(options)
        finally:
            cache.set_directory(before)
    if options.control:
        print(f"control: {row['wrong_count']} results of another case were seen")
        return 0 if row["wrong_count"] else 1
    row = {"machine": machine.machine(), "versions": machine.versions("torch", "jax"), "commit": machine.commit()} | row
    rows = json.loads(options.record.read_text(encoding="utf-8")) if options.record.exists() else []
    rows = [each for each in rows if (each["device"], each["beside"]) != (row["device"], row["beside"])] + [row]
    options.record.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
    print(json.dumps(row, indent=1))
    return 1 if row["wrong_count"] or row["errors"] or row["grew"] else 0


if __name__ == "__main__":
    sys.exit(main())
