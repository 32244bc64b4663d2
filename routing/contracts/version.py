"""The version of this program, as every process reports it. `pyproject.toml` says the same."""

VERSION = "0.1.0"
