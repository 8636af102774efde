"""Do browsers' engines divide networks as `edgekit check --for web` says? A row a network, a column each side.

    python benchmarks/export/accelerators.py net.tflite net.onnx --modules FOLDER

FOLDER has a node_modules with onnxruntime-web and @litertjs/core: `npm install onnxruntime-web @litertjs/core`.
A .tflite is opened by LiteRT.js on WebGPU, which logs how many operators run there. An .onnx is opened by
onnxruntime-web on WebGPU without its optimizer, which logs each operator that has no kernel there. Chromium's WebGPU is
one of software here. Exits 1 where the two sides differ.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
import foreign

from edgekit_converters.formats.delegates import Division, delegates_for, read_network, split

FLAGS = (
    "--headless", "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
    "--enable-unsafe-swiftshader",
)  # fmt: skip
PAGE = """<!doctype html><script type="importmap">{"imports": {
"@litertjs/core": "/node_modules/@litertjs/core/dist/index.js",
"@litertjs/wasm-utils": "/node_modules/@litertjs/wasm-utils/dist/index.js"}}</script>"""
OPENING = {
    "tflite": """
        const lite = await import("@litertjs/core");
        globalThis.loaded ??= lite.loadLiteRt("/node_modules/@litertjs/core/wasm/");
        await globalThis.loaded;
        await lite.loadAndCompile("/" + arguments[0], {accelerator: "webgpu"});""",
    "onnx": """
        const ort = await import("/node_modules/onnxruntime-web/dist/ort.webgpu.min.mjs");
        Object.assign(ort.env, {logLevel: "verbose", debug: true});
        ort.env.wasm.numThreads = 1;
        const options = {executionProviders: ["webgpu"], logSeverityLevel: 0, graphOptimizationLevel: "disabled"};
        await (await ort.InferenceSession.create("/" + arguments[0], options)).release();""",
}
BODY = "(async () => {%s})().then(() => end(''), end);"
NAMES = {"tflite": "litertjs-webgpu", "onnx": "onnxruntime-webgpu"}
_FEW = re.compile(r"(\d+|No) operations will run on the GPU, and (?:the remaining|all) (\d+)")
_NO_KERNEL = re.compile(r"kernel not found in registries for Op type: (\S+) node name: ([^\"\\]*)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--modules", type=Path, required=True, help="a folder with node_modules")
    options = parser.parse_args()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chrome = webdriver.ChromeOptions()
    for flag in FLAGS:
        chrome.add_argument(flag)
    chrome.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    differ = 0
    with tempfile.TemporaryDirectory() as name, foreign.served(Path(name)) as address:
        folder = Path(name)
        (folder / "page.html").write_text(PAGE, encoding="utf-8")
        (folder / "node_modules").symlink_to((options.modules / "node_modules").resolve())
        driver = webdriver.Chrome(options=chrome, service=Service("/usr/bin/chromedriver"))
        try:
            driver.set_script_timeout(300)
            for file in options.files:
                form = file.suffix[1:]
                shutil.copy(file, folder / file.name)
                driver.get(f"{address}/page.html")
                driver.get_log("browser")
                script = "const end = (error) => arguments[1](error ? String(error) : '');" + BODY % OPENING[form]
                failed = driver.execute_async_script(script, file.name)
                log = "\n".join(line["message"] for line in driver.get_log("browser"))
                delegate = next(one for one in delegates_for("web", form) if one.name == NAMES[form])
                network = read_network(form, file.read_bytes())
                ours = split(delegate, network)
                theirs, mine = (litert if form == "tflite" else kernels)(log, failed, ours, len(network.nodes))
                differ += theirs != mine
                print(f"{file.name:<40} {'same' if theirs == mine else 'DIFFERENT':<10} engine {theirs}, table {mine}")
        finally:
            driver.quit()
    return 1 if differ else 0


def litert(log: str, failed: str, ours: Division, operators: int) -> tuple[str, str]:
    """Operators on the GPU and on the processor, of the main graph, which is logged first."""
    mine = f"{ours.taken} + {operators - ours.taken}"
    if "dynamic-sized tensors" in log:
        return f"0 + {operators}", mine
    if found := _FEW.search(log):
        return f"{found[1].replace('No', '0')} + {found[2]}", mine
    return (failed.splitlines()[0] if failed else f"{operators} + 0"), mine


def kernels(log: str, failed: str, ours: Division, _: int) -> tuple[str, str]:
    """Operators without a kernel. Constants are folded in our count, and types of Slice are not in the table."""
    known = Counter(op for op, _ in set(_NO_KERNEL.findall(log)) if op not in ("Slice", "ConstantOfShape"))
    mine = Counter({one.op: one.count for one in ours.left if one.op not in ("Slice", "ConstantOfShape")})
    return failed.splitlines()[0] if failed else str(dict(sorted(known.items()))), str(dict(sorted(mine.items())))


if __name__ == "__main__":
    sys.exit(main())
