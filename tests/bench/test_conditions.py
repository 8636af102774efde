"""What is told of the machine, read from a made-up /proc and /sys."""

from __future__ import annotations

import pytest

from edgekit.bench.conditions import MachineObserver, MachineReading, conditions, figures, read, throttle_words

FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"


def machine(root, **files: str):
    """A board of two cores; files by path with __ for /."""
    told = {
        "proc/cpuinfo": "processor\t: 0\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n",
        "proc/stat": "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1500000\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "600000\n",
        "sys/class/thermal/thermal_zone0/temp": "48312\n",
        "sys/class/thermal/thermal_zone1/temp": "51000\n",
        FIRMWARE: "0\n",
    }
    for path, text in (told | files).items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_board_tells_its_clock_its_heat_and_its_governor(tmp_path):
    told = conditions(machine(tmp_path))
    assert (told["cpu"], told["governor"]) == ("Raspberry Pi 4 Model B Rev 1.4", "ondemand")
    assert (told["frequency_mhz"], told["temperature_c"]) == (1050, 51.0)
    assert read(tmp_path).bits == 0


def test_a_machine_that_tells_nothing_is_no_error(tmp_path):
    told = conditions(tmp_path)
    assert (told["governor"], told["frequency_mhz"], told["temperature_c"]) == (None, None, None)
    found = figures([read(tmp_path), read(tmp_path)], cores=2)
    assert (found["throttled"], found["throttled_by"], found["others_cpu"]) == (None, [], None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/class/hwmon/hwmon0/temp1_input": "70000"}, 51.0),
        ({"sys/class/thermal/thermal_zone0/temp": "garbage", "sys/class/thermal/thermal_zone1/temp": "-273999"}, None),
        (
            {
                "sys/class/thermal/thermal_zone0/temp": "",
                "sys/class/thermal/thermal_zone1/temp": "",
                "sys/class/hwmon/hwmon0/temp1_input": "70000",
            },
            70.0,
        ),
    ],
    ids=["zones before sensors", "nonsense", "sensors where there are no zones"],
)
def test_the_hottest_that_makes_sense_counts(tmp_path, files, expected):
    assert read(machine(tmp_path, **files)).temperature_c == expected


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        ([0x0, 0x0], []),
        ([0x50000, 0x50000], []),
        ([0x0, 0x4, 0x40000], ["throttled"]),
        ([0x0, 0x10000], ["under-voltage"]),
        ([0x20002, 0x20002], ["frequency capped"]),
        ([0x0, 0xE0008], ["frequency capped", "throttled", "soft temperature limit"]),
    ],
    ids=["never", "before the run", "for a moment", "between two looks", "all the time", "several"],
)
def test_throttled_means_during_the_run(bits, words):
    assert throttle_words([MachineReading(float(i), bits=b) for i, b in enumerate(bits)]) == words


def test_a_desktop_counts_its_own_thermal_trips():
    assert throttle_words([MachineReading(0, trips=7), MachineReading(1, trips=7)]) == []
    assert throttle_words([MachineReading(0, trips=7), MachineReading(1, trips=9)]) == ["thermal"]


def test_the_share_of_others_is_what_this_process_did_not_use():
    readings = [MachineReading(0.0, busy_s=100.0, own_s=10.0), MachineReading(10.0, busy_s=112.0, own_s=17.0)]
    assert figures(readings, cores=2)["others_cpu"] == 0.25


def test_the_clock_and_the_heat_are_ranges():
    readings = [
        MachineReading(t, frequency_mhz=f, temperature_c=c)
        for t, f, c in ((0, 1500, 50.0), (1, 600, 85.0), (2, 1500, 80.0))
    ]
    told = figures(readings, cores=1)
    assert told["frequency_mhz"] == {"min": 600, "mean": 1200, "max": 1500}
    assert told["temperature_c"] == {"before": 50.0, "after": 80.0, "max": 85.0}


def test_something_short_is_read_before_and_after(tmp_path):
    machine(tmp_path)
    with MachineObserver(tmp_path, every_s=60.0) as observed:
        machine(tmp_path, **{"sys/class/thermal/thermal_zone0/temp": "90000", FIRMWARE: "40004"})
    told = observed.figures()
    assert (told["temperature_c"]["before"], told["temperature_c"]["after"]) == (51.0, 90.0)
    assert (told["throttled"], told["throttled_by"]) == (True, ["throttled"])
