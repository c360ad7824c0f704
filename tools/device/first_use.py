"""Measures the first use of a modifier on a machine with a GPU: building, verifying and planning both directions.

Each first use is a process with an empty plan store. A static answer, which builds nothing, is timed, too. Each modifier is compiled on the
backends that the planner chooses, and again on cudnn alone.

usage: first_use.py REPORT.json [--machine TEXT] [--commit TEXT] [--running]
       first_use.py --steps REPORT.json [MODIFIER...]

A process that is not reported goes first: it reads the libraries from a disk that may be cold, and its time is `cold_s`.

SCOREMOD_LIBRARY names libscoremod.so. The problem is batch 4, heads 16, 4096 x 4096, head dim 128, bf16. The rounds go over all modifiers in
turn, so that other work of the machine is not one modifier's. The report has for each modifier:
- the process of the median first use, of --repeats (3) with stores of their own, and all their seconds;
- the second process, which finds a filled store;
- the microseconds of a static answer (median of 50).

With --running, "running" is a first use in a process whose CUDA is up, as a framework's is: one that has compiled plain attention before.

"steps" of a process is its timeline, in milliseconds since the call: SCOREMOD_TIMELINE's lines (docs/reference/environment.md), with a number for each
thread of it and of its helper processes. `first_use.py --steps REPORT.json [MODIFIER...]` shows the steps of first uses.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = {"batch": 4, "heads_q": 16, "seq_q": 4096, "seq_kv": 4096, "dim_qk": 128, "dtype": "bf16", "backward": True, "stats": True}

MODIFIERS = {
    "soft_cap": "value = 50.0 * tanh(score / 50.0); keep = kv_idx <= q_idx",
    "sine": "value = sin(score) * 3.0",
    "alibi": "operand slopes: f32 [h]; value = score - slopes * f32(abs(q_idx - kv_idx)); keep = kv_idx <= q_idx",
    "window_512": "value = score; keep = kv_idx <= q_idx & q_idx - kv_idx <= 512",
    "global_window": "value = score; keep = kv_idx < 64 | abs(q_idx - kv_idx) <= 512",
    "prefix": "value = score; keep = kv_idx <= q_idx | kv_idx < 1024",
    "documents": "operand q_ids: i32 [b, q_idx]; operand kv_ids: i32 [b, kv_idx]; value = score; keep = q_ids == kv_ids",
    "temperature": "operand t: f32 [b, h]; value = score * t",
    "distance_decay": "value = score * exp2(-0.01 * f32(abs(q_idx - kv_idx)))",
    "dilated": "value = score; keep = (q_idx - kv_idx) % 2 == 0 & abs(q_idx - kv_idx) <= 256",
    "bias": "operand bias: f32 [h, q_idx, kv_idx]; value = score + bias; keep = kv_idx <= q_idx",
    "sigmoid_gate": "operand gate: f32 [h]; value = score * sigmoid(gate) + log(sigmoid(score) + 0.5)",
}


SELECTIONS = {"chosen": {"memory": "cuda"}, "cudnn": {"backend": "cudnn"}}


def compile_once(program, selection, running):
    """Run in a process of its own."""
    import scoremod

    if running:
        scoremod.Attention({**SIZES, "backward": False, "program": "value = score"}, **SELECTIONS[selection])
    before = scoremod.cache.statistics()
    start = time.perf_counter()
    attention = scoremod.Attention({**SIZES, "program": program}, **SELECTIONS[selection])
    seconds = time.perf_counter() - start
    work = scoremod.cache.statistics()
    backends = {"backend": attention.backend, "backward_backend": attention.backward_backend}
    done = {kind: _since(before[kind], work[kind]) for kind in ("builds", "loads", "trials")}
    print(json.dumps({"start_ms": 1e3 * start, "seconds": seconds, **backends, **done}))


def _since(before, now):
    return {name: now[name] - before[name] for name in now}


def static_microseconds(program):
    import scoremod

    problem = json.dumps({**SIZES, "program": program})
    times = []
    for _ in range(50):
        start = time.perf_counter()
        scoremod.support(problem, backend="cudnn", level="static")
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def in_process(program, selection, store, *options):
    # CUDA's own cache on the disk would make the second of two first uses fast.
    timeline = Path(store, "timeline.jsonl")
    environment = {**os.environ, "SCOREMOD_CACHE_DIR": store, "CUDA_CACHE_PATH": f"{store}/cuda", "SCOREMOD_TIMELINE": str(timeline)}
    timeline.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, __file__, "--compile", program, "--selection", selection, *options], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1]}
    answer = json.loads(done.stdout)
    return {**answer, "steps": steps_of(timeline, answer.pop("start_ms"))}


def steps_of(timeline, start_ms):
    """In the order in which they began. Python's clock is the library's, CLOCK_MONOTONIC."""
    steps = sorted(
        (step for step in map(json.loads, timeline.read_text().splitlines()) if step["end_ms"] >= start_ms),
        key=lambda step: (step["begin_ms"], -step["end_ms"]),
    )
    threads = {}
    return [
        {
            "step": step["step"],
            "what": step["what"],
            "begin_ms": round(step["begin_ms"] - start_ms, 1),
            "end_ms": round(step["end_ms"] - start_ms, 1),
            "thread": threads.setdefault((step["process"], step["thread"]), len(threads)),
        }
        for step in steps
    ]


def show_steps(report, modifiers):
    for row in json.loads(Path(report).read_text())["results"]:
        for selection in SELECTIONS.keys() & row.keys() if not modifiers or row["modifier"] in modifiers else []:
            first = row[selection]["first"]
            print(f"{row['modifier']}, {selection}: {first['seconds']:.2f} s")
            for step in first["steps"]:
                print(f"  {step['begin_ms']:7.1f} to {step['end_ms']:7.1f} ms, thread {step['thread']:2}: {step['step']} {step['what']}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("report", nargs="?")
    parser.add_argument("--machine", default="")
    parser.add_argument("--commit", default=os.environ.get("SCOREMOD_COMMIT", "unknown"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--selections", nargs="+", choices=SELECTIONS, default=["chosen"])
    parser.add_argument("--running", action="store_true")
    parser.add_argument("--compile")
    parser.add_argument("--steps", nargs="+", metavar=("REPORT.json", "MODIFIER"))
    parser.add_argument("--selection", choices=SELECTIONS)
    arguments = parser.parse_args()
    if arguments.compile:
        return compile_once(arguments.compile, arguments.selection, arguments.running)
    if arguments.steps:
        return show_steps(arguments.steps[0], arguments.steps[1:])
    with tempfile.TemporaryDirectory() as store:
        cold = in_process("value = score * 2.0", "chosen", store)
    report = {"machine": arguments.machine, "commit": arguments.commit, "cores": os.cpu_count(), "cold_s": cold.get("seconds")}
    rounds = [{name: measured(name, program, arguments.selections, arguments.running) for name, program in MODIFIERS.items()} for _ in range(arguments.repeats)]
    report["results"] = [row_of(name, program, [each[name] for each in rounds]) for name, program in MODIFIERS.items()]
    report["summary"] = {selection: summary_of(report["results"], selection) for selection in arguments.selections}
    report["summary"]["median_static_us"] = statistics.median(row["static_us"] for row in report["results"])
    print(json.dumps(report["summary"]))
    Path(arguments.report).write_text(json.dumps(report, indent=1) + "\n")


def measured(name, program, selections, running):
    row = {}
    for selection in selections:
        with tempfile.TemporaryDirectory() as store:
            row[selection] = {"first": in_process(program, selection, store), "again": in_process(program, selection, store)}
        if running:
            with tempfile.TemporaryDirectory() as store:
                row[selection]["running"] = in_process(program, selection, store, "--running")
    print(name, {s: row[s]["first"].get("seconds", row[s]["first"]) for s in selections}, flush=True)
    return row


def row_of(name, program, rounds):
    row = {"modifier": name, "program": program}
    for selection in rounds[0]:
        processes = sorted((each[selection] for each in rounds), key=lambda process: process["first"].get("seconds", float("inf")))
        row[selection] = {**processes[len(processes) // 2], "first_seconds": [process["first"].get("seconds") for process in processes]}
        if "running" in row[selection]:
            row[selection]["running_seconds"] = sorted(process["running"].get("seconds", float("inf")) for process in processes)
    row["static_us"] = static_microseconds(program)
    return row


def summary_of(results, selection):
    """The summary of the modifiers' medians. A modifier that failed fails the summary."""
    firsts = [row[selection]["first"]["seconds"] for row in results]
    again = [row[selection]["again"]["seconds"] for row in results]
    summary = {"median_s": statistics.median(firsts), "worst_s": max(firsts), "median_again_s": statistics.median(again)}
    if "running_seconds" in results[0][selection]:
        running = [statistics.median_low(row[selection]["running_seconds"]) for row in results]
        summary |= {"median_running_s": statistics.median(running), "worst_running_s": max(running)}
    return summary


if __name__ == "__main__":
    main()
