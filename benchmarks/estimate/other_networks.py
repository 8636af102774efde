"""Networks that ONNX Runtime was timed with on boards and that the fit does not read, as lists of operations.

    OTHERS["yolov8n_640"]().macs         # 4,371,456,000, as its authors publish (8.7 GFLOP)

YOLOv8 and YOLO11 are drawn from Ultralytics' model files, with their SiLU as an operation of its own; Inception V3 from
keras.applications.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from networks import Sketch

from edgekit_profiles.workload import Op

_WIDTHS = (64, 128, 256, 512, 1024)
_CLASSES = 80


class _Yolo(Sketch):
    def conv_silu(self, out: int, kernel: int = 1, stride: int = 1) -> _Yolo:
        self.conv(out, kernel, stride).elementwise()
        return self

    def aside(self, side: int, channels: int) -> _Yolo:
        beside = _Yolo(side, channels)
        beside.ops = self.ops
        return beside

    def joined(self, side: int, channels: int) -> _Yolo:
        """Upsampled or not, beside another map of that side."""
        self.side, self.channels = side, channels
        return self

    def bottlenecks(self, half: int, count: int, inner: int) -> _Yolo:
        for _ in range(count):
            self.conv_silu(inner, 3).conv_silu(half, 3).elementwise(2)
        return self

    def c2f(self, out: int, count: int) -> _Yolo:
        half = out // 2
        self.conv_silu(out).channels = half
        self.bottlenecks(half, count, half).channels = (2 + count) * half
        return self.conv_silu(out)

    def c3k(self, out: int) -> _Yolo:
        half = out // 2
        self.aside(self.side, self.channels).conv_silu(half)
        self.conv_silu(half).bottlenecks(half, 2, half).channels = 2 * half
        return self.conv_silu(out)

    def c3k2(self, out: int, deep: bool, part: float = 0.5) -> _Yolo:
        half = int(out * part)
        self.conv_silu(2 * half).channels = half
        inner = self.c3k(half) if deep else self.bottlenecks(half, 1, half // 2)
        inner.channels = 3 * half
        return self.conv_silu(out)

    def pooled(self, out: int) -> _Yolo:
        half = self.channels // 2
        self.conv_silu(half).elementwise().elementwise().elementwise().channels = 4 * half
        return self.conv_silu(out)

    def attention(self, out: int) -> _Yolo:
        half, places = out // 2, self.side**2
        heads = max(1, half // 64)
        self.conv_silu(out).channels = half
        self.conv(2 * half).channels = half
        for depth in (32, 64):  # of a key and of a value
            moved = 2 * places * depth * heads + places**2 * heads
            self.ops.append(Op("pw", places**2 * depth * heads, moved, 0, computed=True))
        self.ops.append(Op("ew", 0, 2 * places**2 * heads, 0))
        self.depthwise(3).conv(half).elementwise(2)
        self.conv(2 * half).elementwise().conv(half).elementwise(2).channels = out
        return self.conv_silu(out)

    def heads(self, widths: Iterable[int], light: bool) -> _Yolo:
        """light: classes by depthwise convolutions, as from YOLO11 on."""
        first, *rest = widths
        box, score = max(16, first // 4, 64), max(first, _CLASSES)
        for side, channels in zip((80, 40, 20), (first, *rest), strict=True):
            self.aside(side, channels).conv_silu(box, 3).conv_silu(box, 3).conv(64)
            classes = self.aside(side, channels)
            for _ in range(2):
                if light:
                    classes.depthwise(3).elementwise()
                classes.conv_silu(score, 1 if light else 3)
            classes.conv(_CLASSES)
        return self


def yolov8(width: float) -> Sketch:
    a, b, c, d, e = (int(width * one) for one in _WIDTHS)
    net = _Yolo(640).conv_silu(a, 3, 2).conv_silu(b, 3, 2).c2f(b, 1).conv_silu(c, 3, 2).c2f(c, 2)
    net.conv_silu(d, 3, 2).c2f(d, 2).conv_silu(e, 3, 2).c2f(e, 1).pooled(e)
    net.joined(40, e + d).c2f(d, 1).joined(80, d + c).c2f(c, 1)
    net.conv_silu(c, 3, 2).joined(40, c + d).c2f(d, 1).conv_silu(d, 3, 2).joined(20, d + e).c2f(e, 1)
    return net.heads((c, d, e), light=False)


def yolo11(width: float) -> Sketch:
    a, b, c, d, e = (int(width * one) for one in _WIDTHS)
    net = _Yolo(640).conv_silu(a, 3, 2).conv_silu(b, 3, 2).c3k2(c, False, 0.25).conv_silu(c, 3, 2).c3k2(d, False, 0.25)
    net.conv_silu(d, 3, 2).c3k2(d, True).conv_silu(e, 3, 2).c3k2(e, True).pooled(e).attention(e)
    net.joined(40, e + d).c3k2(d, False).joined(80, d + d).c3k2(c, False)
    net.conv_silu(c, 3, 2).joined(40, c + d).c3k2(d, False).conv_silu(d, 3, 2).joined(20, d + e).c3k2(e, True)
    return net.heads((c, d, e), light=True)


class _Inception(Sketch):
    def branch(self, channels: int | None = None, side: int | None = None) -> _Inception:
        aside = _Inception(side or self.side, channels or self.channels)
        aside.ops = self.ops
        return aside

    def line(self, out: int, length: int) -> _Inception:
        """A kernel of 1 x length or length x 1."""
        weights, area = self.channels * out * length, self.side**2
        self.ops.append(Op("cx", area * weights, area * (self.channels + out), weights))
        self.channels = out
        return self

    def then(self, out: int, kernel: int = 1, stride: int = 1, padding: str = "same") -> _Inception:
        self.conv(out, kernel, stride, padding)
        return self


def inception_v3() -> Sketch:
    net = _Inception(299).then(32, 3, 2, "valid").then(32, 3, 1, "valid").then(64, 3)
    net.pool(3, 2, "valid").conv(80).conv(192, 3, 1, "valid").pool(3, 2, "valid")
    for pooled in (32, 64, 64):
        net.branch().conv(64)
        net.branch().conv(48).conv(64, 5)
        net.branch().conv(64).conv(96, 3).conv(96, 3)
        net.branch().pool(3, 1).conv(pooled)
        net.channels = 224 + pooled
    net.branch().conv(384, 3, 2, "valid")
    net.branch().conv(64).conv(96, 3).conv(96, 3, 2, "valid")
    net.pool(3, 2, "valid").channels = 768
    for inner in (128, 160, 160, 192):
        net.branch().conv(192)
        net.branch().then(inner).line(inner, 7).line(192, 7)
        net.branch().then(inner).line(inner, 7).line(inner, 7).line(inner, 7).line(192, 7)
        net.branch().pool(3, 1).conv(192)
        net.channels = 768
    net.branch().conv(192).conv(320, 3, 2, "valid")
    net.branch().then(192).line(192, 7).line(192, 7).conv(192, 3, 2, "valid")
    net.pool(3, 2, "valid").channels = 1280
    for _ in range(2):
        net.branch().conv(320)
        for fork in (net.branch().then(384), net.branch().then(448).then(384, 3)):
            fork.branch().line(384, 3)
            fork.branch().line(384, 3)
        net.branch().pool(3, 1).conv(192)
        net.channels = 2048
    return net.mean().dense(1000)


OTHERS: Mapping[str, Callable[[], Sketch]] = {
    "inception_v3_299": inception_v3,
    "yolov8n_640": partial(yolov8, 0.25),
    "yolov8s_640": partial(yolov8, 0.5),
    "yolo11n_640": partial(yolo11, 0.25),
    "yolo11s_640": partial(yolo11, 0.5),
}
