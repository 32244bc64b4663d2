"""What `manage.py help` says: the product's own commands. Standard library only, no state."""

# Every file in console/management/commands, in the order in which a newcomer meets them.
COMMANDS = {
    "up": "start Headrace: servers, console, gateways, workers (--demo: with pools and traffic)",
    "credentials": "print the operator's password and the demo keys",
    "status": "show what runs; exit code 0 only if all of it is ready",
    "down": "stop everything that runs",
    "test": "run the guards and the tests on private servers; other arguments go to pytest",
    "bench": "run a benchmark; ratios against a baseline measured in the same call",
    "profile": "measure an endpoint, write an engine profile for simulate",
    "replay": "send a trace through a gateway at its own arrival times",
    "reconcile": "compare holds, live counters and ledger; --repair corrects what differs",
    "import_demand": "read hourly demand from a CSV file, for forecasts",
    "simulate": "run a scenario in virtual time, with the gateway's own decisions",
    "engine": "install a real vLLM for CPU, or serve a small local model with it",
    "gateway": "run gateway processes that share a port",
    "collect": "run the collector of metrics",
    "ledger": "move usage from the store into the ledger, exactly once",
}


def text() -> str:
    """The whole answer."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        (
            "usage: python3 manage.py COMMAND [--state DIR] [options]",
            "",
            "Commands:",
            *(f"  {name:<{width}}  {words}" for name, words in COMMANDS.items()),
            "",
            "`manage.py COMMAND --help` shows a command's options. --state names the directory",
            "that an installation lives in (default: .headrace beside manage.py).",
            "`manage.py help --commands` also lists Django's own commands; they need a state.",
            "",
        )
    )
