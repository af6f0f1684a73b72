"""Run the study: ``python -m research.detection``."""

import sys

from research.detection.command import main

sys.exit(main())
