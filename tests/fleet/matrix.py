"""The kill matrix: broker, ingestor and boards get `kill -9` in turn while one board is hostile.

    found = run(folder, Matrix(seconds=60.0))
    assert found.ledger.committed == found.ledger.stored + found.ledger.waiting + found.lost

Boards are processes with the real reporter and its spool on disk, beside simulated ones in this process.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.boards import body, windows
from fleet.proof import Ledger, read_ledger
from fleet.reporting import SimulatedBoards
from listener import Listener
from mosquitto import Mosquitto

from edgekit.fleet.store.databases import SqliteStore
from edgekit_runtime.telemetry.window import Seal, sealed_payload

HERE = Path(__file__).parent
HOSTILE = "hostile-1"


@dataclass(frozen=True)
class Matrix:
    """boards: in processes of their own. beside: simulated here. crowd: of `edgekit fleet simulate`, a window a second.

    Kills are spread evenly over `seconds`.
    """

    boards: int = 6
    beside: int = 40
    crowd: int = 0
    window_s: float = 0.5
    seconds: float = 60.0
    broker_kills: int = 3
    ingestor_kills: int = 2
    board_kills: int = 12
    drain_s: float = 60.0
    seed: int = 3


@dataclass(frozen=True)
class Found:
    """ledger: of all boards but the hostile one and the crowd. lost: given up by boards and counted by the store.

    hostile: messages of the board that means harm, which are in no other figure. crowd: what its boards say of
    themselves. crowd_stored: its windows in the store.
    """

    ledger: Ledger
    lost: int
    hostile: int
    kills: int
    crowd: Mapping[str, Any]
    crowd_stored: int


def run(folder: Path, matrix: Matrix) -> Found:
    draw = random.Random(matrix.seed)
    broker = Mosquitto(
        folder, *(["max_queued_messages 1000000"] if matrix.crowd else [])
    )  # as `fleet broker-config` has it
    broker.start()
    names = [f"killed-{n}" for n in range(matrix.boards)]
    simulated = SimulatedBoards(
        broker.url, folder, [f"board-{n:03}" for n in range(matrix.beside)], window_s=matrix.window_s, seed=7
    )
    boards = {name: _board(broker, folder, name, matrix) for name in names}
    ingestor = _ingestor(broker, folder)
    crowd = _crowd(broker, matrix)
    kills = ["broker"] * matrix.broker_kills + ["ingestor"] * matrix.ingestor_kills + ["board"] * matrix.board_kills
    draw.shuffle(kills)
    try:
        with _hostile(broker) as told, simulated:
            for kill in kills:
                time.sleep(matrix.seconds / len(kills))
                if kill == "broker":
                    broker.kill()
                    time.sleep(0.5)
                    broker.start()
                elif kill == "ingestor":
                    _kill(ingestor)
                    time.sleep(0.5)
                    ingestor = _ingestor(broker, folder)
                else:
                    name = draw.choice(names)
                    _kill(boards[name])
                    boards[name] = _board(broker, folder, name, matrix)
            _wait_until_drained(folder, [*names, *simulated.answered], matrix)
            crowd_said = {} if crowd is None else json.loads(crowd.communicate()[0])
            for board in boards.values():
                _kill(board)
            simulated.close(matrix.drain_s)
    finally:
        for process in (ingestor, *boards.values(), *([] if crowd is None else [crowd])):
            _kill(process)
        broker.kill()
    with contextlib.closing(SqliteStore.open(folder / "fleet.db")) as store:
        rows = [row for row in store.fleet() if row.id != HOSTILE]
        counted = [*names, *simulated.answered]
        stored = sum(len(set(windows(store, row.id))) for row in rows if row.id not in counted)
        ledger = read_ledger(folder, store, counted)
        return Found(ledger, sum(row.lost for row in rows), told[0], len(kills), crowd_said, stored)


def _crowd(broker: Mosquitto, matrix: Matrix) -> subprocess.Popen[bytes] | None:
    """It ends by itself, half of the time to drain after the last kill."""
    if not matrix.crowd:
        return None
    command = ["fleet", "simulate", "--broker", broker.url, "--devices", str(matrix.crowd), "--json", "--window-s", "1"]
    command += ["--minutes", str((matrix.seconds + matrix.drain_s / 2) / 60)]
    run = "from edgekit.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", run, *command], stdout=subprocess.PIPE)


def _board(broker: Mosquitto, folder: Path, name: str, matrix: Matrix) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "one_board.py"), broker.url, name, str(folder / f"{name}.db")]
    return subprocess.Popen([*command, str(matrix.window_s)])


def _ingestor(broker: Mosquitto, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "one_ingestor.py"), broker.url, str(folder / "fleet.db")])


def _kill(process: subprocess.Popen[bytes]) -> None:
    """As `kill -9`."""
    process.kill()
    process.wait()


@contextlib.contextmanager
def _hostile(broker: Mosquitto) -> Iterator[list[int]]:
    """A board that sends 20 messages a second, each within the format: the largest counts, random floors and epochs."""
    stop, told, draw = threading.Event(), [0], random.Random(1)
    window = json.loads(body(HOSTILE))
    most = 1000 * window["dur"] + 1_000_000

    def work() -> None:
        speaker = Listener(broker.port, topic=f"ek/v1/{HOSTILE}/nothing")
        while not stop.wait(0.05):
            value = window | {"n": most, "cm": most, "err": most, "lat": {"device": [5, 0, [most]]}}
            seq = draw.randrange(1, 1 << 36)
            seal = Seal(f"{draw.getrandbits(64):016x}", seq, seq, seq - 1, 1 << 36, 1 << 36)
            speaker.say(f"ek/v1/{HOSTILE}/m", sealed_payload(json.dumps(value).encode(), seal), qos=1)
            told[0] += 1
        speaker.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join()


def _wait_until_drained(folder: Path, names: list[str], matrix: Matrix) -> None:
    """Boards go on reporting, so a little always waits: until each has less than ten windows to send."""
    store, until = SqliteStore.open(folder / "fleet.db"), time.monotonic() + matrix.drain_s
    with contextlib.closing(store):
        while time.monotonic() < until:
            rows = {row.id: row for row in store.fleet()}
            if all(name in rows and rows[name].online and rows[name].waiting < 10 for name in names):
                return
            time.sleep(1.0)
