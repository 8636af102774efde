"""edgekit: the host side, what a person runs. The command is in `edgekit.cli`."""

__all__ = ["__version__"]

__version__ = "0.1.0"
