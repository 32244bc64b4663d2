"""`python -m telemetry.collector`: the process that `up` starts."""

import sys

from telemetry.collector.process import main

sys.exit(main())
