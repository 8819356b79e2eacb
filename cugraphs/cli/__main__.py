"""``python -m cugraphs.cli``."""

import sys

from cugraphs.cli import main

sys.exit(main())
