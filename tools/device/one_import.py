"""Runs examples/torch/packed_documents.py as it is, and with PyTorch's own FlexAttention imported instead, and writes both beside each other.

usage: one_import.py OUTPUT.json [OPTIONS OF THE EXAMPLE]

Without options it runs on CUDA with batch 4, 16 heads, length 4096, head dim 128 in bfloat16. The exit code is 0 if the script trains on
scoremod (the loss falls, every slope moves), its first loss is FlexAttention's within bfloat16's rounding, and both directions are faster.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "torch" / "packed_documents.py"
FULL = "--device cuda --batch 4 --heads 16 --seq 4096 --dim 128 --dtype bfloat16 --steps 8".split()
IMPORT = re.compile(r"^from scoremod\.torch import flex_attention  # (from torch\.nn\.attention\.flex_attention import flex_attention)$", re.MULTILINE)


def variants(text):
    """name -> the script's text: as it is, and with the other import."""
    other, count = IMPORT.subn(r"\1", text)
    if count != 1:
        raise SystemExit(f"{SCRIPT}: expected one import of flex_attention with PyTorch's beside it, found {count}")
    return {"scoremod": text, "flex_attention": other}


def run(text, options):
    """The last line that the script printed; the end of its stderr where it failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(text)
        script.flush()
        done = subprocess.run([sys.executable, script.name, *options], capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def main():
    output, options = Path(sys.argv[1]), sys.argv[2:] or FULL
    found = {name: run(text, options) for name, text in variants(SCRIPT.read_text(encoding="utf-8")).items()}
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    ours, theirs = found["scoremod"], found["flex_attention"]
    checks = {"trains": "losses" in ours and ours["losses"][-1] < ours["losses"][0] and ours["least_change_of_a_slope"] > 0}
    if "losses" in ours and "losses" in theirs:
        checks["same_first_loss"] = abs(ours["losses"][0] - theirs["losses"][0]) <= 2**-7 * theirs["losses"][0]
        checks |= {f"faster_{way}": ours[f"{way}_ms"] < theirs[f"{way}_ms"] for way in ("forward", "backward")}
    report = {"device": device, "torch": torch.__version__, "commit": os.environ.get("SCOREMOD_COMMIT", ""), "options": options, **found, "checks": checks}
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({name: {key: each[key] for key in each if key != "losses"} for name, each in found.items()} | checks))
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
