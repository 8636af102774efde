"""What is shipped, installed by its own install.sh in whole emulated systems, and used there as an owner would use it.

Every child process is real: the self-test's, the trial's, and those that tuning starts. 32 bits first: there Debian's
NumPy is 1.24 on bookworm, and has no wheel that would say what it lacks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from arm.chroot import EMULATORS, System, check_kernel, static_emulators
from arm.conftest import BOARDS, Bare, Prepared, bare
from once import once

from edgekit.boards.emulated_board import CPUS
from edgekit.shipping.package import PackageRequest, pack
from edgekit_runtime.bundle.manifest import Target

CPU = {"aarch64": "cortex-a72", "armv7l": "cortex-a15"}
SYSTEMS = ("bookworm, 32 bits", "trixie, 32 bits", "bookworm", "trixie")
"""All of BOARDS, 32 bits first."""
MARK = "=== "
USE = """
import json, numpy as np
from edgekit_runtime import open_bundle
reds = [np.full((8, 8, 3), (200 + n % 50, 20, 20), np.uint8) for n in range(60)]
with open_bundle("/srv/tiny/model") as model:
    answers = [model.predict(red) for red in reds[:30]]
    answers += [future.result() for future in [model.submit(red) for red in reds[30:]]]
    stats = model.stats()
labels = sorted({answer.top(1)[0].label for answer in answers})
print(json.dumps({"numpy": np.__version__, "labels": labels, "requests": stats.meter.requests, "faults": stats.faults}))
"""
SCRIPT = """
set -e
bin=/srv/tiny/env/bin
echo "=== install.sh"; sh /package/install.sh --prefix /srv/tiny --no-service
echo "=== use"; $bin/python /given/use.py
echo "=== run"; $bin/edgekit run /srv/tiny/model /given/red.npy --json
echo "=== bench"; $bin/edgekit bench /srv/tiny/model/current/bundle.ekb -n 20 --json
echo "=== install"; $bin/edgekit install /package/bundle/tiny.ekb --root /srv/tiny/model --allow-unsigned --json
"""


@dataclass(frozen=True)
class Used:
    """What each part of SCRIPT printed, and how it ended."""

    parts: dict[str, str]
    err: str

    def json(self, part: str) -> Any:
        assert part in self.parts, self.err
        assert self.parts[part], self.err
        return json.loads(self.parts[part])


@pytest.fixture(scope="session")
def used(request, cache, tmp_path_factory) -> Prepared[Used]:
    """By the names of SYSTEMS; each is made, installed on and used once, two at a time."""
    check_kernel()
    emulators = once(request, "qemu-static", static_emulators)
    given = tmp_path_factory.mktemp("given")
    (given / "use.py").write_text(USE)
    np.save(given / "red.npy", tiny.RED)

    def use(name: str, folder: Path) -> Used:
        engine, board = BOARDS[name][1], bare(name, folder / "wheels", cache)
        machine = board.land.image.machine
        package = packed(board, engine, folder)
        with System(board.land, CPUS[CPU[machine]], folder / "root", emulators / EMULATORS[machine]) as system:
            done = system.run(SCRIPT, {"/package": package, "/given": given})
        parts = (part.partition("\n") for part in done.stdout.split(MARK)[1:])
        return Used({part: text for part, _, text in parts}, f"{done.returncode}: {done.stderr[-4000:]}")

    return Prepared(SYSTEMS, use, tmp_path_factory)


def packed(board: Bare, engine: str, folder: Path) -> Path:
    """The package that `edgekit pack` makes for it, of the wheel that was built for its house."""
    wheel = next(board.house.folder / wheel.file for wheel in board.house.wheels if wheel.name == "edgekit-deploy")
    target = Target(board.profile.name, board.land.image.machine, threads=1)
    bundle = tiny.bundle(folder, tiny.RECIPE_OF_ENGINE[engine], target=target)
    return pack(
        PackageRequest(bundle, board.profile, folder / "package", engine=engine, wheel=wheel, allow_unsigned=True)
    ).path


pytestmark = [pytest.mark.network, pytest.mark.timeout(1200)]
each_system = pytest.mark.parametrize("name", SYSTEMS)


@each_system
def test_predict_submit_and_stats_work_where_it_was_installed(used, name):
    found = used[name].json("use")
    assert found["faults"] == {}, used[name].err  # of the meter, say: answers come all the same
    assert found["requests"] == 60
    assert found["labels"] == ["red"]


def test_numpy_is_as_old_as_debian_s_on_32_bits(used):
    versions = {name: used[name].json("use")["numpy"] for name in SYSTEMS}
    assert versions["bookworm, 32 bits"].startswith("1.24."), versions


@each_system
def test_run_and_bench_work_where_it_was_installed(used, name):
    assert "red" in used[name].parts["run"]
    assert used[name].json("bench")["n"] == 20


@each_system
def test_its_edgekit_finds_what_install_sh_installed(used, name):
    assert used[name].json("install")["already"] is True
