"""What a shell completes: profiles, recipes, metrics, engines, codes and keys.

    @click.option("--profile", shell_complete=completion.profiles)

Rule: a completion imports only what it lists, and lists nothing where that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

METRICS = ("top1", "top5", "f1", "map", "map50", "mae", "miou", "pixel-accuracy")
_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completing(names: Callable[[click.Context], Iterable[str]]) -> _Complete:
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from edgekit_runtime.errors import EdgekitError

        try:
            return [name for name in names(context) if name.startswith(incomplete)]
        except (EdgekitError, OSError, ImportError):
            return []

    return complete


@_completing
def profiles(context: click.Context) -> Iterable[str]:
    from edgekit_profiles import open_catalogue

    return open_catalogue(context.params.get("profile_paths") or ()).names()


@_completing
def recipes(_context: click.Context) -> Iterable[str]:
    from edgekit_converters.targets.artifact import RECIPES

    return RECIPES


@_completing
def metrics(_context: click.Context) -> Iterable[str]:
    return METRICS


@_completing
def engines(_context: click.Context) -> Iterable[str]:
    from edgekit_runtime.engines.registry import ENGINES

    return ENGINES


@_completing
def codes(_context: click.Context) -> Iterable[str]:
    from edgekit.checking.catalogue import entries

    return entries()


@_completing
def keys(context: click.Context) -> Iterable[str]:
    from edgekit.keys.folder import KeyFolder, default_folder

    return [entry.name for entry in KeyFolder(context.params.get("folder") or default_folder()).entries()]
