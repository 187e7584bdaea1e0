"""`python -m tandem.apps.cli` is the `tandem` command."""

import sys

from tandem.apps.cli.main import main

sys.exit(main())
