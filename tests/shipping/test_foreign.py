"""The programs for Node, C and pages answer in their real engines what Python answers, and their own check notices
what was changed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import foreign
import mirrored
import numpy as np
import pytest
import tiny
from PIL import Image

from edgekit.boards.emulated_board import CPUS
from edgekit.boards.emulated_board import Image as SystemImage
from edgekit.boards.qemu import EmulatedBoard, emulator
from edgekit.shipping.programs.export import export
from edgekit_runtime import open_bundle
from edgekit_runtime.bundle.reader import read_bundle
from edgekit_runtime.contract.adapt import Adapter
from edgekit_runtime.contract.decode import Decoder

SIZES = ((24, 24), (61, 47), (17, 90), (300, 31), (7, 5))
"""Of pictures: the network's own, larger, smaller, long and high."""
IMAGES = {
    "bilinear stretch": mirrored.image(std=(255.0, 127.5, 58.4), mean=(0.0, 127.5, 103.9)),
    "bicubic crop": mirrored.image(width=20, resize="center-crop", crop=0.875, interpolation="bicubic"),
    "bgr letterbox": mirrored.image(
        width=31, resize="letterbox", color="bgr", mean=(104.0, 117.0, 123.0), std=(1.0,) * 3
    ),
    "gray nearest": mirrored.image(color="gray", mean=(33.3,), std=(78.6,), interpolation="nearest"),
    "nearest crop": mirrored.image(height=9, resize="center-crop", interpolation="nearest"),
    "bicubic letterbox": mirrored.image(height=50, width=50, resize="letterbox", interpolation="bicubic"),
}
TENSORS = [("float32", "NHWC"), ("float32", "NCHW"), ("int8", "NHWC"), ("uint8", "NCHW")]


@pytest.fixture(scope="session")
def modules(request):
    return foreign.node_modules(request)


@pytest.fixture(scope="session")
def ort(request):
    return foreign.onnxruntime(request)


def exported(path, target, name="out"):
    return export(read_bundle(path), path.with_name(name), target).files[0].parent


def in_node(folder, modules, code):
    """The JSON that an expression of predict.js gives."""
    script = 'import * as net from "./predict.js"; import { readFileSync } from "fs";'
    script += f"console.log(JSON.stringify({code}));"
    done = foreign.node(folder, "--input-type=module", "-e", script, modules=modules)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def saved(folder, pixels, name):
    """The picture as a PPM, which C reads, and its raw bytes, which JavaScript takes."""
    Image.fromarray(pixels).save(folder / f"{name}.ppm")
    (folder / f"{name}.rgb").write_bytes(pixels.tobytes())
    return f'{{data: readFileSync("{name}.rgb"), width: {pixels.shape[1]}, height: {pixels.shape[0]}}}'


_DUMP = """
#include "predict.c"
#include <stdio.h>
static int calls;
void *__real_malloc(size_t); void *__real_calloc(size_t, size_t); void *__real_realloc(void *, size_t);
void *__wrap_malloc(size_t n) { calls++; return __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t m) { calls++; return __real_calloc(n, m); }
void *__wrap_realloc(void *p, size_t n) { calls++; return __real_realloc(p, n); }
int main(int n, char **names) {
    static predict_answer answers[PREDICT_MOST];
    if (predict_open("model.onnx") != 0) return puts(predict_error()), 1;
    for (int i = 1; i + 2 < n; i += 3) {
        int w = atoi(names[i + 1]), h = atoi(names[i + 2]);
        uint8_t *rgb = malloc((size_t)(w * h * 3));
        FILE *file = fopen(names[i], "rb");
        if (fread(rgb, 1, (size_t)(w * h * 3), file) == 0 || predict_size(w, h) != 0) return 2;
        fclose(file);
        int before = calls;
        for (int turn = 0; turn < 3; turn++) if (predict(rgb, answers) < 0) return puts(predict_error()), 3;
        if (calls != before) return puts("it allocates"), 4;
        file = fopen("tensors.bin", i == 1 ? "wb" : "ab");
        fwrite(tensor, sizeof tensor, 1, file);
        fclose(file);
        free(rgb);
    }
    predict_close();
    return 0;
}
"""


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("tensor", TENSORS, ids="-".join)
def test_input_tensors_are_byte_for_byte_those_of_python(tmp_path, modules, ort, kind, tensor):
    path = mirrored.vector(tmp_path, IMAGES[kind], *tensor)
    bundle = read_bundle(path)
    spec, taken = bundle.manifest.contract.inputs[0], bundle.manifest.artifacts[0].inputs[0]
    decode, adapt = Decoder(spec), Adapter(spec, taken)
    drawn = [mirrored.picture(number, *size) for number, size in enumerate(SIZES)]
    wanted = [adapt(decode(Image.fromarray(one))).tobytes() for one in drawn]
    javascript, c = exported(path, "node", "node"), exported(path, "c", "c")
    given = [saved(javascript, one, f"p{number}") for number, one in enumerate(drawn)]
    code = (
        f"[{', '.join(given)}].map((one) => Buffer.from(net.tensorOf(net.render(one).pixels).buffer).toString('hex'))"
    )
    assert [bytes.fromhex(text) for text in in_node(javascript, modules, code)] == wanted
    (c / "dump.c").write_text(_DUMP)
    wraps = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc")]
    command = ["gcc", "-std=c99", "-O1", "-ffp-contract=off", f"-I{ort}/include", "dump.c", "-o", "dump", *wraps]
    command += [f"-L{ort}/lib", f"-Wl,-rpath,{ort}/lib", "-lonnxruntime", "-lm"]
    subprocess.run(command, cwd=c, check=True)
    arguments = [text for n, size in enumerate(SIZES) for text in (str(javascript / f"p{n}.rgb"), *map(str, size))]
    done = subprocess.run(["./dump", *arguments], cwd=c, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (c / "tensors.bin").read_bytes() == b"".join(wanted)


@pytest.mark.parametrize("kind", ["bilinear stretch", "gray nearest"])
def test_a_picture_with_transparency_lies_over_white_as_in_python(tmp_path, modules, kind):
    path = mirrored.vector(tmp_path, IMAGES[kind])
    folder, drawn = exported(path, "node"), np.random.default_rng(8).integers(0, 256, (50, 41, 4), np.uint8)
    (folder / "p.rgba").write_bytes(drawn.tobytes())
    code = '[...net.render({data: readFileSync("p.rgba"), width: 41, height: 50}).pixels]'
    wanted = Decoder(read_bundle(path).manifest.contract.inputs[0])(Image.fromarray(drawn))
    assert in_node(folder, modules, code) == wanted.ravel().tolist()


def boxes_of(answer):
    return [(b["label"], b["score"], b["left"], b["top"], b["right"], b["bottom"]) for b in answer]


@pytest.mark.parametrize("kind", mirrored.DETECTORS)
def test_boxes_are_those_of_python(tmp_path, modules, ort, kind):
    settings = mirrored.DETECTORS[kind]
    path = mirrored.detector(tmp_path, counted=kind == "ssd", stated=kind == "ssd", **settings)
    javascript, c = exported(path, "node", "node"), exported(path, "c", "c")
    foreign.compile_program(c, ort, flags="-O1 -Wconversion -Wpedantic -Wno-error=pedantic")
    seen = 0
    with open_bundle(path) as model:
        for number, size in enumerate(SIZES[:4]):
            drawn = mirrored.picture(number, *size)
            wanted = model.predict(Image.fromarray(drawn)).boxes
            answer = in_node(javascript, modules, f"await net.predict({saved(javascript, drawn, 'p')})")
            assert [one["label"] for one in answer] == [one.label for one in wanted]
            for one, other in zip(boxes_of(answer), wanted, strict=True):
                assert one[1:] == pytest.approx(
                    (other.score, other.left, other.top, other.right, other.bottom), abs=1e-4
                )
            printed = subprocess.run(["./predict", javascript / "p.ppm"], cwd=c, capture_output=True, text=True)
            assert printed.returncode == 0, printed.stderr
            mirrored.assert_printed(printed.stdout, wanted)
            seen += len(wanted)
    assert seen > 3


@pytest.mark.parametrize("target", ["node", "c"])
def test_the_check_says_ok_and_hostile_labels_come_out_as_they_are(tmp_path, modules, ort, target):
    path = tiny.bundle(tmp_path, "onnx-f32", contract=replace(tiny.CONTRACT, labels=mirrored.LABELS[:4]))
    folder = exported(path, target)
    if target == "node":
        done = foreign.node(folder, "predict.js", modules=modules)
        unread = foreign.node(folder, "predict.js", "nowhere.ppm", modules=modules)
        labels = in_node(
            folder, modules, f"(await net.predict({saved(folder, tiny.RED, 'red')})).map((one) => one.label)"
        )
        assert set(labels) == set(mirrored.LABELS[:4])
    else:
        foreign.compile_program(folder, ort)
        saved(folder, tiny.RED, "red")
        said = subprocess.run(["./predict", "red.ppm"], cwd=folder, capture_output=True, check=True).stdout.decode()
        assert all(label in said for label in mirrored.LABELS[:4])
        done = subprocess.run(["./predict"], cwd=folder, capture_output=True, text=True)
        unread = subprocess.run(["./predict", "nowhere.ppm"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ok"), done.stderr
    assert (unread.returncode, unread.stdout, len(unread.stderr.splitlines())) == (2, "", 1)
    assert unread.stderr.startswith("nowhere.ppm: cannot be read: ")


@pytest.mark.parametrize("quantized", [False, True])
def test_numbers_without_a_picture_come_back_as_python_gives_them(tmp_path, modules, ort, quantized):
    path = mirrored.floats(tmp_path, quantized=quantized)
    item = np.float32([1.5, -0.075, 9.0, -6.6, 0.025, 4.0])
    with open_bundle(path) as model:
        wanted = model.predict(item).outputs
    javascript, c = exported(path, "node", "node"), exported(path, "c", "c")
    answer = in_node(javascript, modules, f"await net.predict({item.tolist()})")
    assert list(answer["y"].values()) == pytest.approx(wanted["y"].tolist(), abs=1e-7)
    assert list(answer["place"].values()) == wanted["place"].tolist()
    foreign.compile_program(c, ort, flags="-O1 -Wconversion")
    (c / "item.f32").write_bytes(item.tobytes())
    printed = subprocess.run(["./predict", "item.f32"], cwd=c, capture_output=True, text=True, check=True).stdout
    assert list(map(float, printed.split())) == pytest.approx([*wanted["y"], *wanted["place"]], rel=1e-5)
    for done in (
        foreign.node(javascript, "predict.js", modules=modules),
        subprocess.run(["./predict"], cwd=c, capture_output=True, text=True),
    ):
        assert done.stdout.splitlines()[-1] == "ok", done.stderr


def test_a_vector_has_length_one_where_the_contract_says_so(tmp_path, modules, ort):
    path = mirrored.vector(tmp_path, mirrored.image(), normalize=True)
    folder, drawn = exported(path, "node"), mirrored.picture(5)
    with open_bundle(path) as model:
        wanted = model.predict(drawn).vector
    answer = in_node(folder, modules, f"await net.predict({saved(folder, drawn, 'p')})")
    assert list(answer.values()) == pytest.approx(wanted.tolist(), abs=1e-7)
    c = exported(path, "c", "c")
    foreign.compile_program(c, ort)
    printed = subprocess.run(["./predict", folder / "p.ppm"], cwd=c, capture_output=True, text=True, check=True).stdout
    assert list(map(float, printed.split())) == pytest.approx(wanted.tolist(), abs=1e-6)


CROP = mirrored.image(height=8, width=8, resize="center-crop", crop=0.875)
TWINS = {
    "another crop": ("predict", "* 0.875", "* 0.9", "the pixels of a picture"),
    "bgr for rgb": (
        "predict",
        "let c = 0; c < 3; c++) cut[to++] = rgb[c]",
        "let c = 2; c >= 0; c--) cut[to++] = rgb[c]",
        "the pixels of a picture",
    ),
    "a changed label order": ("labels", "green", "red", "is not the bundle's"),
    "a changed weight": ("model", b"", b"", "the golden answers are of onnxruntime"),
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("target", ["node", "c"])
def test_what_was_changed_is_noticed(tmp_path, modules, ort, target, twin):
    contract = replace(tiny.CONTRACT, inputs=(replace(tiny.CONTRACT.inputs[0], image=CROP),))
    folder = exported(tiny.bundle(tmp_path, "onnx-f32", contract=contract), target)
    part, old, new, said = TWINS[twin]
    if target == "c" and twin == "bgr for rgb":
        old, new = "for (int c = 0; c < 3; c++) *to++ = from[c]", "for (int c = 2; c >= 0; c--) *to++ = from[c]"
    if part == "model":
        change_a_weight(folder / "model.onnx")
    else:
        file = folder / f"{part}.{'js' if target == 'node' else 'h' if part == 'labels' else 'c'}"
        text = file.read_text()
        assert text.count(old) == 1
        text = text.replace(old, new)
        if part == "labels":
            text = text.replace("red", "green", 1)
        file.write_text(text)
    if target == "node":
        done = foreign.node(folder, "predict.js", modules=modules)
    else:
        foreign.compile_program(folder, ort)
        done = subprocess.run(["./predict"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr


def change_a_weight(path):
    """The largest initializer of floats gets its first value negated and doubled."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    tensor = max((t for t in model.graph.initializer if t.data_type == 1), key=lambda t: len(t.raw_data))
    values = numpy_helper.to_array(tensor).copy()
    values.reshape(-1)[:] *= np.linspace(-2, 2, values.size, dtype=np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, path)


@pytest.mark.parametrize("cc", ["gcc", "clang"])
def test_both_compilers_take_each_program_without_a_warning(tmp_path, ort, cc):
    flags = "-O2 -Wshadow -Wconversion -Wstrict-prototypes -Wvla"
    made = [
        mirrored.vector(tmp_path / str(n), spec, *TENSORS[n % 4])
        for n, spec in enumerate(IMAGES.values())
        if not (tmp_path / str(n)).mkdir()
    ]
    made += [
        mirrored.detector(tmp_path / name, **mirrored.DETECTORS[name])
        for name in mirrored.DETECTORS
        if name != "ssd" and not (tmp_path / name).mkdir()
    ]
    for path in made:
        foreign.compile_program(exported(path, "c"), ort, cc, flags)


@pytest.mark.parametrize("kind", ["classes", "boxes"])
def test_sanitizers_find_nothing(tmp_path, ort, kind):
    path = (
        tiny.bundle(tmp_path, "onnx-f32")
        if kind == "classes"
        else mirrored.detector(tmp_path, **mirrored.DETECTORS["yolo, last"])
    )
    folder = exported(path, "c")
    foreign.compile_program(folder, ort, flags="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all")
    (folder / "suppressed").write_text("leak:libonnxruntime\n")  # which keeps 14 bytes of its own
    saved(folder, mirrored.picture(1, 90, 33), "p")
    (folder / "short.ppm").write_bytes((folder / "p.ppm").read_bytes()[:500])
    (folder / "huge.ppm").write_bytes(b"P6\n# wide\n99999999 2 255\n")
    settings = {"LSAN_OPTIONS": f"suppressions={folder}/suppressed:print_suppressions=0"}
    for arguments, code in (
        ([], 0),
        (["p.ppm"], 0),
        (["short.ppm"], 1),
        (["huge.ppm"], 1),
        (["labels.txt"], 1),
        (["none"], 2),
    ):
        done = subprocess.run(["./predict", *arguments], cwd=folder, capture_output=True, text=True, env=settings)
        assert done.returncode == code, done.stderr
        assert "Sanitizer" not in done.stderr
    (folder / "golden.bin").write_bytes(b"")
    done = subprocess.run(["./predict"], cwd=folder, capture_output=True, text=True, env=settings)
    assert (done.returncode, done.stderr) == (1, "golden.bin ends too early\n")


@pytest.mark.parametrize("board", ["cortex-a72", "cortex-a15"])
def test_c_answers_the_same_on_emulated_arm(request, tmp_path, board):
    cpu = CPUS[board]
    land, folder = foreign.land(request, cpu.machine), exported(tiny.bundle(tmp_path, "onnx-f32"), "c")
    if cpu.machine == "aarch64":  # Debian's is an illegal instruction before Armv8.2
        libraries = foreign.onnxruntime(request, "aarch64") / "lib"
    else:
        libraries = land.root / "usr/lib" / foreign.TRIPLES[cpu.machine]
    foreign.cross_compile(folder, cpu.machine, land.root / foreign.HEADERS, libraries)
    if shutil.which("qemu-aarch64") is None and shutil.which("qemu-aarch64-static") is None:
        foreign.missing("the ARM emulator", "apt-get install qemu-user")
    with EmulatedBoard(land, cpu) as machine:
        run = [emulator(SystemImage("trixie", cpu.machine)), "-cpu", cpu.name, "-L", machine.root, "./predict"]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(libraries)})
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.splitlines()[-1] == "ok"


@pytest.mark.parametrize("recipe", ["onnx-f32", "tflite-f32", "tflite-int8"])
def test_a_page_answers_in_a_real_browser(tmp_path, modules, browser, recipe):
    path = tiny.bundle(tmp_path, recipe, contract=replace(tiny.CONTRACT, labels=mirrored.LABELS[:4]))
    folder = exported(path, "web")
    (folder / "node_modules").symlink_to(modules)
    drawn = mirrored.picture(4, 61, 47)
    Image.fromarray(drawn).save(folder / "p.png")
    with foreign.served(folder) as address:
        browser.get(f"{address}/index.html")
        browser.set_script_timeout(120)
        answer = browser.execute_async_script(
            """const done = arguments[0];
            (async () => {
                const net = await import("./predict.js");
                const picture = await createImageBitmap(await (await fetch("p.png")).blob());
                return [await net.check(), await net.predict(picture)];
            })().then(done, (error) => done(String(error.stack)));"""
        )
        assert not isinstance(answer, str), answer
        for _ in range(100):
            if (shown := browser.find_element("id", "check").text) not in ("", "running the golden examples"):
                break
    lines, classes = answer
    assert lines[-1] == "ok", lines
    assert shown == "ok"
    with open_bundle(path) as model:
        wanted = model.predict(Image.fromarray(drawn)).top(4)
    assert [one["label"] for one in classes] == [one.label for one in wanted]
    assert [one["score"] for one in classes] == pytest.approx([one.score for one in wanted], abs=1e-5)


def test_the_types_are_those_of_the_program(tmp_path, modules):
    made = {"classes": tiny.bundle(tmp_path, "onnx-f32")}
    kinds = {
        "boxes": mirrored.detector,
        "raw": mirrored.floats,
        "vector": partial(mirrored.vector, spec=mirrored.image()),
    }
    for name, make in kinds.items():
        (tmp_path / name).mkdir()
        made[name] = make(tmp_path / name)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    used = "import { check, predict, run } from './predict.js';\nconst said: string[] = await check();\n"
    files = []
    for path in made.values():
        for target in ("node", "web"):
            folder = exported(path, target, target)
            files.append(str(folder / "used.ts"))
            (folder / "used.ts").write_text(f"{used}console.log(said, predict, await run([1, 2]));\n")
    done = type_checked(tmp_path, files, modules, module="nodenext")
    assert done.returncode == 0, done.stdout


def type_checked(folder, files, modules, **settings):
    settings |= {"noEmit": True, "strict": True, "target": "es2022", "lib": ["es2022", "dom"], "types": []}
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": settings, "files": files}))
    return subprocess.run([modules / ".bin/tsc"], cwd=folder, capture_output=True, text=True)


WRONG_CALLS = [
    ("model.run([input.buffer as ArrayBuffer])", "model.run(input)"),
    ('executionProviders: ["coreml"', "providers: ["),
]


def test_the_calls_of_react_native_have_the_types_of_its_packages(tmp_path, request):
    modules = foreign.node_modules(
        request, "react-native", lambda folder: foreign.install(folder, foreign.REACT_NATIVE | foreign.TYPESCRIPT)
    )
    exported(tiny.bundle(tmp_path, "tflite-f32"), "web", "app")
    (tmp_path / "app/node_modules").symlink_to(modules)
    page = (Path(__file__).parents[2] / "docs/phones.md").read_text()
    blocks = re.findall(
        r"```text\n(import .*?)```", page.partition("## React Native")[2].partition("\n## ")[0], re.DOTALL
    )
    given = "declare const require: (file: string) => number;\ndeclare const path: string;\n"
    given += 'declare const picture: import("./predict").Pixels;\n'
    found = {}
    for fits in (True, False):
        for number, (block, (right, wrong)) in enumerate(zip(blocks, WRONG_CALLS, strict=True)):
            assert right in block
            (tmp_path / f"app/app-{number}.ts").write_text(given + (block if fits else block.replace(right, wrong)))
        done = type_checked(
            tmp_path / "app", ["app-0.ts", "app-1.ts"], modules, module="esnext", moduleResolution="bundler",
            skipLibCheck=True,
        )  # fmt: skip
        found[fits] = sorted(set(re.findall(r"app-\d.ts", done.stdout)))
    assert found == {True: [], False: ["app-0.ts", "app-1.ts"]}, done.stdout
