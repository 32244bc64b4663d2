"""One target under libFuzzer: `python -m tests.fuzz.child TARGET LAUNCHER OPTIONS...`."""

import sys

try:
    import atheris
except ImportError:
    sys.exit("pip install --require-hashes -r tests/fuzz/requirements.lock")

with atheris.instrument_imports(include=["routing.gateway"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    target = TARGETS[sys.argv[1]]
    atheris.Setup(sys.argv[2:], target)
    atheris.Fuzz()
