"""edgekit build: a trained model in, a checked bundle for each board out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import PATH, PERCENT, as_json, budget_ms, print_json
from edgekit.cli.progress import shown

__all__ = ["build"]


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A board, see `edgekit profiles list`; repeatable.",
)
@click.option(
    "--calibration", metavar="SET", help="Representative examples: an image folder, .npy, .npz or module:function."
)
@click.option(
    "--evaluation", metavar="SET", help="Examples to measure with; sub-folders, or `y` in an .npz, are labels."
)
@click.option("--max-drop", type=PERCENT, metavar="PERCENT", help="Most the task metric may lose, in points: 1%.")
@budget_ms
@click.option("--recipe", "recipes", multiple=True, metavar="NAME", help="Only this recipe; repeatable. Default: all.")
@click.option("--contract", type=PATH, metavar="TOML", help="What inputs mean. Default: MODEL.contract.toml beside it.")
@click.option("--name", metavar="NAME", help="Name of the bundles. Default: the model file's.")
@click.option(
    "--model-version", default="1", show_default=True, metavar="TEXT", help="Version of the model, kept in the bundle."
)
@click.option("--sign", type=PATH, metavar="PEM", help="Sign with this Ed25519 private key.")
@click.option("-o", "--output", type=PATH, default=Path("bundles"), show_default=True, help="Folder for the bundles.")
@as_json
def build(as_json: bool, model_version: str, **options: Any) -> int:
    """Convert MODEL with every recipe, measure how far each artifact drifts from the original, and pack for each board the
    one that keeps within the limits. Exits 1 when a board got none; the others are written all the same.
    """
    import edgekit.building

    request = edgekit.building.BuildRequest(version=model_version, **options)
    with shown() as progress:
        report = edgekit.building.build(request, progress)
    if as_json:
        print_json(report.as_json())
    else:
        for line in edgekit.building.summary(report):
            click.echo(line)
    return 0 if report.complete else 1
