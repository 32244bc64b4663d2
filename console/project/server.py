"""What the console's server loads: the application, on a schema that it fits."""

import os
import sys

from console.conditions.schema import why_not_start

if line := why_not_start(os.environ["DATABASE_URL"]):
    sys.exit(line)

from console.project.asgi import application  # noqa: F401
