"""One memory budget for several models: what goes first, who is refused, and what the system's limits say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit_runtime.system.errors import MemoryExceeded
from edgekit_runtime.system.memory import MemoryBudget, Need, Room, degrade, fair_shares, room_here

NEED = Need(40, {4: 10, 8: 20}, cache_mb=64)


@pytest.mark.parametrize(
    ("left", "batches", "cache", "lost"),
    [
        (134, (4, 8), 64, ()),
        (133, (4,), 64, ("no variant for batches of 8",)),
        (113, (), 64, ("no variant for batches of 8", "no variant for batches of 4")),
        (60, (), 20, ("no variant for batches of 8", "no variant for batches of 4", "cache of 20 MB instead of 64 MB")),
        (40.5, (), 0, ("no variant for batches of 8", "no variant for batches of 4", "no cache")),
        (40, (), 0, ("no variant for batches of 8", "no variant for batches of 4", "no cache")),
    ],
)
def test_what_is_optional_goes_in_order_and_is_told(left, batches, cache, lost):
    grant = degrade(NEED, left)
    assert (grant.batches, grant.cache_mb, grant.degraded) == (batches, cache, lost)


def test_without_room_for_the_model_itself_there_is_no_grant():
    assert degrade(NEED, 39.9) is None


@given(
    model=st.floats(0, 500),
    batches=st.dictionaries(st.sampled_from([2, 4, 8, 16]), st.floats(0, 200)),
    cache=st.floats(0, 256),
    left=st.floats(0, 1000),
)
def test_a_grant_always_fits_and_tells_whatever_it_took_away(model, batches, cache, left):
    need = Need(model, batches, cache)
    grant = degrade(need, left)
    if grant is None:
        assert model > left
        return
    assert model + sum(batches[size] for size in grant.batches) + grant.cache_mb <= left + 1e-6
    assert bool(grant.degraded) == (set(grant.batches) != set(batches) or grant.cache_mb < cache)


@pytest.mark.parametrize(
    ("total", "needed", "told"),
    [
        (0.001, 0.0123, r"it needs 0.012 MB .*, and 0.001 MB are left. Allow 0.011 MB more"),
        (1.5, 4.25, r"it needs 4.2 MB .*, and 1.5 MB are left. Allow 2.8 MB more"),
        (100, 250.4, r"it needs 250 MB .*, and 100 MB are left. Allow 150 MB more"),
    ],
)
def test_a_small_budget_is_told_with_the_digits_that_count(total, needed, told):
    with pytest.raises(MemoryExceeded, match=told):
        MemoryBudget(total).claim("faces", Need(needed))


def test_a_cache_that_nobody_wanted_is_not_missed():
    assert degrade(Need(1.0, {2: 1.2e-38}, 0.0), 1.0).degraded == ()  # the sum rounds to what is left


def test_models_share_a_budget_and_give_back_what_they_took():
    budget = MemoryBudget(200)
    faces = budget.claim("faces", NEED)
    assert (budget.left_mb, budget.room_mb) == pytest.approx((66, 130))
    voice = budget.claim("voice", Need(50, {}, 64))
    assert (faces.degraded, voice.degraded) == (("cache of 40 MB instead of 64 MB",),) * 2
    assert budget.left_mb == pytest.approx(0)
    with pytest.raises(MemoryExceeded, match=r"needs 90 MB.*80 MB are left \(faces holds 70 MB; voice holds 50 MB\)"):
        budget.claim("words", Need(90))
    faces.release()
    faces.release()
    assert voice.degraded == ()
    assert budget.claim("words", Need(30)).degraded == ()
    assert budget.held() == pytest.approx({"voice": 114, "words": 30})


def test_a_cache_follows_what_models_leave_it():
    budget, told = MemoryBudget(100), []
    faces = budget.claim("faces", Need(20, {}, 64))
    faces.follow(told.append)
    voice = budget.claim("voice", Need(40, {}, 64))
    words = budget.claim("words", Need(40))
    assert (faces.degraded, voice.cache_mb) == (("no cache",), 0.0)
    words.release()
    voice.release()
    faces.release()
    assert told == [64, 20, 0, 20, 64]


def test_a_variant_for_batches_goes_before_a_cache_of_the_same_model_shrinks():
    budget = MemoryBudget(120)
    budget.claim("faces", Need(20, {}, 20))
    assert budget.claim("voice", Need(40, {4: 30}, 20)).degraded == ("no variant for batches of 4",)
    assert budget.left_mb == 20


def test_what_takes_more_than_was_claimed_takes_it_from_caches_or_is_refused():
    budget = MemoryBudget(100)
    faces = budget.claim("faces", Need(20, {}, 64))
    voice = budget.claim("voice", Need(20, {}, 0))
    voice.settle(50)
    assert faces.cache_mb == 30
    with pytest.raises(MemoryExceeded, match=r"voice: it needs 90 MB.*80 MB are left \(faces holds 20 MB\)"):
        voice.settle(90)
    voice.release()
    assert budget.held() == {"faces": 84}


@given(wanted=st.lists(st.floats(0, 100), max_size=6), pool=st.floats(0, 300))
def test_shares_are_fair(wanted, pool):
    shares = fair_shares(wanted, pool)
    assert sum(shares) <= pool + 1e-6
    assert all(share <= one for share, one in zip(shares, wanted, strict=True))
    short = [share for share, one in zip(shares, wanted, strict=True) if 0 < share < one]
    assert all(share == pytest.approx(short[0]) for share in short), "those who go short go short alike"
    if sum(wanted) <= pool:
        assert shares == wanted


def test_what_was_really_taken_replaces_the_estimate():
    budget = MemoryBudget(100)
    claim = budget.claim("faces", Need(40))
    claim.settle(25.0)
    assert budget.left_mb == 75
    claim.settle(None)
    assert budget.left_mb == 75


@pytest.mark.parametrize("total", [0, -1, float("nan"), float("inf")])
def test_a_budget_is_more_than_nothing(total):
    with pytest.raises(ValueError, match="total_mb"):
        MemoryBudget(total)


def test_what_the_system_enforces_refuses_and_free_memory_only_degrades():
    with pytest.raises(MemoryExceeded, match="30 MB are left"):
        Room(hard_mb=30).claim("faces", NEED)
    grant = Room(soft_mb=30).claim("faces", NEED).grant
    assert (grant.batches, grant.cache_mb) == ((), 0)
    assert Room().claim("faces", NEED).grant.degraded == ()


GIB = 1 << 30
V2 = {
    "proc/self/cgroup": "0::/app.slice\n",
    "cg/app.slice/memory.max": f"{GIB}\n",
    "cg/app.slice/memory.current": f"{GIB // 2}\n",
    "cg/app.slice/memory.stat": f"anon 1\ninactive_file {GIB // 4}\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
    "cg/memory/memory.limit_in_bytes": f"{GIB}\n",
    "cg/memory/memory.usage_in_bytes": f"{GIB // 4}\n",
}
NONE = {"proc/self/cgroup": "0::/\n", "cg/memory.max": "max\n", "cg/memory.current": "5\n"}
HUGE = {
    "proc/self/cgroup": "4:memory:/\n",
    "cg/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "cg/memory/memory.usage_in_bytes": "1\n",
}


@pytest.mark.parametrize(
    ("files", "hard"),
    [(V2, 0.9 * 0.75 * GIB / 1e6), (V1, 0.9 * 0.75 * GIB / 1e6), (NONE, None), (HUGE, None), ({}, None)],
    ids=["v2", "v1", "max", "v1 without a limit", "no files"],
)
def test_the_cgroups_limit_is_read(tmp_path, files, hard):
    for name, text in {**files, "proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  500000 kB\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    room = room_here(tmp_path / "proc", tmp_path / "cg")
    assert room.hard_mb == (None if hard is None else pytest.approx(hard))
    assert room.soft_mb == pytest.approx(512)
