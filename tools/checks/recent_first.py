"""The order in which checks with little time take sources: those that git's last commits changed, newest first, and then the others at random."""

import random
import subprocess
from pathlib import Path

COMMITS = 50


def changed(root, commits=COMMITS):
    """Files below `root` that differ from the last commit, then those of the commits before, newest first. Nothing where git knows no history.

    A commit without a parent doesn't count: the first commit, and the oldest one of a shallow clone, have every file."""
    compared = ["diff", "--name-only", "HEAD"]
    logged = ["log", f"--max-count={commits}", "--min-parents=1", "--max-parents=1", "--name-only", "--format="]
    found = []
    for words in (compared, logged):
        try:
            done = subprocess.run(["git", *words, "--no-renames", "-z", "--relative"], cwd=root, capture_output=True, text=True, check=False)
        except OSError:  # no git
            return []
        found += [name.strip("\n") for name in done.stdout.split("\0")] if done.returncode == 0 else []
    return [root / name for name in dict.fromkeys(found) if name]


def recent_first(sources, root, seed, commits=COMMITS):
    """(sources in order, how many of them changed). A header changes the source beside it of the same name. `seed` decides about the others."""
    ranks = {}
    for rank, path in enumerate(changed(root, commits)):
        ranks.setdefault(path.with_suffix(""), rank)
    shuffled = sorted(sources)
    random.Random(seed).shuffle(shuffled)
    rank_of = {source: ranks.get(Path(source).with_suffix(""), len(ranks)) for source in shuffled}
    ordered = sorted(shuffled, key=rank_of.__getitem__)
    return ordered, sum(rank < len(ranks) for rank in rank_of.values())
