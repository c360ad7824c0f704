"""python -m scoremod: the command of the Python package."""

import sys

from scoremod.command import main

sys.exit(main())
