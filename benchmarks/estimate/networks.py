"""The networks of the published table as lists of operations, from the papers that describe them.

    NETWORKS["mobilenet_v2_1.0_224"]().macs        # 300,774,272

Activations that follow a convolution are fused into it, as engines do; swish is an operation of its own. Five of them
are checked against keras.applications' own counts by a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

from edgekit_profiles.workload import Op, OpKind, Workload


class Sketch:
    """A network as it is drawn: the side and the channels of what flows now, and the operations so far."""

    def __init__(self, side: int, channels: int = 3) -> None:
        self.side, self.channels = side, channels
        self.ops: list[Op] = []

    def _out(self, kernel: int, stride: int, padding: str) -> int:
        return -(-self.side // stride) if padding == "same" else (self.side - kernel) // stride + 1

    def conv(self, out: int, kernel: int = 1, stride: int = 1, padding: str = "same") -> Sketch:
        side = self._out(kernel, stride, padding)
        kind: OpKind = "pw" if kernel == 1 else "c3" if (kernel, stride) == (3, 1) else "cx"
        weights = self.channels * out * kernel * kernel
        self.ops.append(Op(kind, side * side * weights, self._area() + side * side * out, weights))
        self.side, self.channels = side, out
        return self

    def depthwise(self, kernel: int, stride: int = 1) -> Sketch:
        side, channels = self._out(kernel, stride, "same"), self.channels
        per_element = kernel * kernel
        moved = self._area() + side * side * channels
        self.ops.append(Op("dw", side * side * channels * per_element, moved, channels * per_element))
        self.side = side
        return self

    def elementwise(self, inputs: int = 1) -> Sketch:
        self.ops.append(Op("ew", 0, (inputs + 1) * self._area(), 0))
        return self

    def pool(self, kernel: int, stride: int, padding: str = "same") -> Sketch:
        side = self._out(kernel, stride, padding)
        self.ops.append(Op("ew", 0, self._area() + side * side * self.channels, 0))
        self.side = side
        return self

    def mean(self) -> Sketch:
        self.ops.append(Op("ew", 0, self._area() + self.channels, 0))
        self.side = 1
        return self

    def dense(self, out: int) -> Sketch:
        flat = self._area()
        self.ops.append(Op("fc", flat * out, flat + out, flat * out))
        self.side, self.channels = 1, out
        return self

    def squeeze_excite(self, inner: int) -> Sketch:
        area, channels = self._area(), self.channels
        self.ops.append(Op("ew", 0, area + channels, 0))
        for _ in range(2):
            self.ops.append(Op("fc", channels * inner, channels + inner, channels * inner))
        self.ops.append(Op("ew", 0, 2 * area + channels, 0))
        return self

    def branch(self, channels: int | None = None, side: int | None = None) -> Sketch:
        """Operations beside the main line: they count, and what flows on stays as it is."""
        aside = Sketch(side or self.side, channels or self.channels)
        aside.ops = self.ops
        return aside

    def _area(self) -> int:
        return self.side * self.side * self.channels


def mobilenet_v1(side: int = 224, width: float = 1.0, top: bool = True) -> Sketch:
    net = Sketch(side).conv(int(32 * width), 3, 2)
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for out, stride in plan:
        net.depthwise(3, stride).conv(int(out * width))
    return net.mean().dense(1000) if top else net


def mobilenet_v2(side: int = 224) -> Sketch:
    net = Sketch(side).conv(32, 3, 2)
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for factor, out, repeats, stride in stages:
        for index in range(repeats):
            if factor > 1:
                net.conv(net.channels * factor)
            net.depthwise(3, stride if index == 0 else 1).conv(out)
            if index:
                net.elementwise(2)
    return net.conv(1280).mean().dense(1000)


# kernel, expanded, out, squeeze-and-excite, hard-swish, stride
LARGE = [
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
]  # fmt: skip
SMALL = [
    (3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1),
    (5, 240, 40, 1, 1, 1), (5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2), (5, 576, 96, 1, 1, 1),
    (5, 576, 96, 1, 1, 1),
]  # fmt: skip


def mobilenet_v3(blocks: list[tuple[int, ...]], last: int, dense: int) -> Sketch:
    net = Sketch(224).conv(16, 3, 2).elementwise()
    for kernel, expanded, out, excite, swish, stride in blocks:
        before = net.channels
        if expanded != before:
            net.conv(expanded)
            if swish:
                net.elementwise()
        net.depthwise(kernel, stride)
        if swish:
            net.elementwise()
        if excite:
            net.squeeze_excite(expanded // 4)
        net.conv(out)
        if stride == 1 and before == out:
            net.elementwise(2)
    return net.conv(last).elementwise().mean().dense(dense).dense(1000)


def efficientnet(lite: bool) -> Sketch:
    net = Sketch(224).conv(32, 3, 2)
    if not lite:
        net.elementwise()
    stages = [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ]
    for factor, out, repeats, stride, kernel in stages:
        for index in range(repeats):
            before = net.channels
            if factor > 1:
                net.conv(before * factor)
                if not lite:
                    net.elementwise()
            net.depthwise(kernel, stride if index == 0 else 1)
            if not lite:
                net.elementwise().squeeze_excite(max(1, before // 4))
            net.conv(out)
            if index:
                net.elementwise(2)
    return net.conv(1280).mean().dense(1000)


def mnasnet() -> Sketch:
    net = Sketch(224).conv(32, 3, 2).depthwise(3).conv(16)
    stages = [
        (3, 24, 3, 2, 3),
        (3, 40, 3, 2, 5),
        (6, 80, 3, 2, 5),
        (6, 96, 2, 1, 3),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ]
    for factor, out, repeats, stride, kernel in stages:
        for index in range(repeats):
            net.conv(net.channels * factor).depthwise(kernel, stride if index == 0 else 1).conv(out)
            if index:
                net.elementwise(2)
    return net.conv(1280).mean().dense(1000)


def resnet50(stride_in_3x3: bool = False) -> Sketch:
    """stride_in_3x3: the variant that is called v1.5."""
    net = Sketch(224).conv(64, 7, 2).pool(3, 2)
    for stage, (width, repeats) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for index in range(repeats):
            stride = 2 if stage and index == 0 else 1
            side, before = net.side, net.channels
            net.conv(width, 1, 1 if stride_in_3x3 else stride).conv(width, 3, stride if stride_in_3x3 else 1).conv(
                4 * width
            )
            if index == 0:
                net.branch(before, side).conv(4 * width, 1, stride)
            net.elementwise(2)
    return net.mean().dense(1000)


def resnet18() -> Sketch:
    net = Sketch(224).conv(64, 7, 2).pool(3, 2)
    for stage, width in enumerate([64, 128, 256, 512]):
        for index in range(2):
            stride = 2 if stage and index == 0 else 1
            side, before = net.side, net.channels
            net.conv(width, 3, stride).conv(width, 3)
            if stride == 2:
                net.branch(before, side).conv(width, 1, 2)
            net.elementwise(2)
    return net.mean().dense(1000)


def squeezenet() -> Sketch:
    net = Sketch(227).conv(64, 3, 2, "valid").pool(3, 2, "valid")
    fires = [(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)]
    for index, (squeeze, expand) in enumerate(fires):
        if index in (2, 4):
            net.pool(3, 2, "valid")
        net.conv(squeeze)
        net.branch().conv(expand)
        net.branch().conv(expand, 3)
        net.channels = 2 * expand
    return net.conv(1000).mean()


def googlenet() -> Sketch:
    net = Sketch(224).conv(64, 7, 2).pool(3, 2).conv(64).conv(192, 3).pool(3, 2)
    first = [(64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)]
    second = [
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ]
    third = [(256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)]
    for stage in (first, second, third):
        if stage is not first:
            net.pool(3, 2)
        for one, three_in, three, five_in, five, pooled in stage:
            net.branch().conv(one)
            net.branch().conv(three_in).conv(three, 3)
            net.branch().conv(five_in).conv(five, 5)
            net.branch().pool(3, 1).conv(pooled)
            net.channels = one + three + five + pooled
    return net.mean().dense(1000)


def vgg16() -> Sketch:
    net = Sketch(224)
    for width, repeats in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(repeats):
            net.conv(width, 3)
        net.pool(2, 2)
    return net.dense(4096).dense(4096).dense(1000)


def ssd_mobilenet_v1() -> Sketch:
    net = mobilenet_v1(300, top=False)
    maps = [(19, 512), (10, 1024)]
    for squeeze, out in [(256, 512), (128, 256), (128, 256), (64, 128)]:
        net.conv(squeeze).conv(out, 3, 2)
        maps.append((net.side, out))
    for side, channels in maps:
        net.branch(channels, side).conv(6 * 25)
    return net


def yolov4_tiny() -> Sketch:
    net = Sketch(416).conv(32, 3, 2).conv(64, 3, 2)
    for width in (64, 128, 256):
        net.conv(width, 3)
        for _ in range(2):
            net.branch(width // 2).conv(width // 2, 3)
        net.branch().conv(width)
        net.channels = 2 * width
        net.pool(2, 2)
    net.conv(512, 3).conv(256)
    net.branch().conv(512, 3)
    net.branch(512).conv(255)
    net.conv(128)
    net.side, net.channels = 26, 384
    return net.conv(256, 3).conv(255)


NETWORKS: Mapping[str, Callable[[], Sketch]] = {
    "mobilenet_v1_1.0_224": mobilenet_v1,
    "mobilenet_v1_1.0_160": partial(mobilenet_v1, 160),
    "mobilenet_v1_1.0_128": partial(mobilenet_v1, 128),
    "mobilenet_v1_0.75_224": partial(mobilenet_v1, 224, 0.75),
    "mobilenet_v1_0.5_224": partial(mobilenet_v1, 224, 0.5),
    "mobilenet_v1_0.25_224": partial(mobilenet_v1, 224, 0.25),
    "mobilenet_v2_1.0_224": mobilenet_v2,
    "mobilenet_v2_1.0_192": partial(mobilenet_v2, 192),
    "mobilenet_v2_1.0_160": partial(mobilenet_v2, 160),
    "mobilenet_v2_1.0_128": partial(mobilenet_v2, 128),
    "mobilenet_v3_large_224": partial(mobilenet_v3, LARGE, 960, 1280),
    "mobilenet_v3_small_224": partial(mobilenet_v3, SMALL, 576, 1024),
    "efficientnet_lite0_224": partial(efficientnet, True),
    "efficientnet_b0_224": partial(efficientnet, False),
    "mnasnet_1.0_224": mnasnet,
    "resnet50_224": resnet50,
    "resnet50_v1.5_224": partial(resnet50, True),
    "resnet18_224": resnet18,
    "squeezenet_1.1_227": squeezenet,
    "googlenet_224": googlenet,
    "vgg16_224": vgg16,
    "ssd_mobilenet_v1_voc_300": ssd_mobilenet_v1,
    "yolov4_tiny_416": yolov4_tiny,
}


@cache
def workload(name: str) -> Workload:
    """Its precision is float32; the roofline is told another where another is meant."""
    return Workload("float32", tuple(NETWORKS[name]().ops))
