"""``python -m cugraphs``: the command line."""

import sys

from cugraphs.cli import main

sys.exit(main())
