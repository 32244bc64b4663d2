"""`python -m routing.gateway`: one data plane process."""

import logging
import sys

import uvloop

from routing.gateway.config import ConfigError, from_environment
from routing.gateway.journal_start import JournalLockedError
from routing.gateway.lifetime import NotReadyError, run

EXIT_CONFIG = 2


def main() -> int:
    """Read the environment, serve, return the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        config = from_environment()
        logging.getLogger().setLevel(config.log_level)
        return uvloop.run(run(config))
    except (ConfigError, JournalLockedError, NotReadyError, ValueError, OSError) as error:
        logging.getLogger(__name__).critical("gateway cannot start: %s", error)
        return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main())
