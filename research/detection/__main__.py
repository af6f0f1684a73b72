"""Run the study of how often slowdowns are found: ``python -m research.detection``."""

import sys

from research.detection.command import main

sys.exit(main())
