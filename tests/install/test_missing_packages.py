"""A package that the build needs and that is not there: CMake says what to install."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_message_has_the_command(tmp_path):
    hidden = ["-DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON"]
    done = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *hidden], capture_output=True, text=True)
    assert done.returncode == 1
    # CMake breaks lines where it likes.
    said = " ".join(done.stderr.split())
    assert "nlohmann_json 3.10, hwy" in said
    assert "apt-get install nlohmann-json3-dev libhwy-dev as root" in said
