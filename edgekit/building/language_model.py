"""A GGUF file packed for boards: checked, proven by golden prompts, never converted.

    edgekit build model.gguf --profile raspberry-pi-5
    edgekit build model.gguf --profile raspberry-pi-5 --evaluation prompts.txt      # golden prompts of your own

Rules:
- the numbers in the file stay as they are: its author chose how it is quantized;
- a golden example is a prompt and the tokens that llama.cpp chooses here, up to the first that is not clear. Clear is
  what is CLEAR times as probable as the next: other processors round differently, and choose it all the same;
- a board whose memory cannot hold the weights and the usual cache of keys and values gets no bundle, and a reason;
- no time is estimated: nothing was measured on boards.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from edgekit.building.build_report import BuildReport, BundleReport
from edgekit.building.build_request import BuildRequest
from edgekit.building.build_subject import Board
from edgekit.packaging.assemble import BundleContent, Item, assemble
from edgekit.packaging.model_file import read_model
from edgekit.packaging.output_errors import PackagingError
from edgekit.packaging.writer import Signer, write_bundle
from edgekit_converters.choose import Candidate, ChoiceLimits, choose
from edgekit_converters.recipe.artifact import Artifact, Precision, Recipe, tool_versions
from edgekit_converters.recipe.conversion_errors import CalibrationError, ConversionError
from edgekit_converters.recipe.progress import Progress
from edgekit_runtime.bundle.manifest import RUNTIME_VERSION, Target
from edgekit_runtime.contract.spec import Contract, GenerationSpec, InputContract, OutputContract
from edgekit_runtime.contract.text import admit
from edgekit_runtime.engines.llamacpp import PROMPT_BYTES, TOKENS, USUAL_CONTEXT, LlamaEngine, prompt_row
from edgekit_runtime.engines.registry import load_engine
from edgekit_runtime.modelfile.check import check_model
from edgekit_runtime.modelfile.gguf_structure import GgufModel, read_gguf
from edgekit_runtime.system.board import cores
from edgekit_runtime.system.errors import EdgekitError, ModelFileError

PROMPTS = (
    "1, 2, 3, 4, 5, 6,",
    "Monday, Tuesday, Wednesday,",
    "a b c d e f g",
    "January February March April",
    "The sun rises in the east and sets in the",
    "def add(a, b):\n    return",
    "Paris is the capital of",
    "<html>\n<head>\n<title>",
)
"""Beginnings that most models continue in one way."""
CLEAR = 2.0
_GOLDEN = 4
_PROCESS_BYTES = 120 << 20
"""Of Python and llama.cpp, without a model."""
_UNUSED = ("calibration", "metric", "compare", "allow_random", "recipes", "batches", "degraded", "contract")


def build_language_model(
    request: BuildRequest, boards: Sequence[Board], signers: Sequence[Signer], progress: Progress,
    write_report: Callable[[BuildReport], BuildReport],
) -> BuildReport:  # fmt: skip
    """Build for every board. Raises EdgekitError for what stops all of them."""
    start = time.perf_counter()
    unused = [name for name in _UNUSED if getattr(request, name, None)]
    if unused:
        flag = {"recipes": "recipe", "batches": "batch"}.get(unused[0], unused[0].replace("_", "-"))
        what = f"--{flag} does not go with a language model: its file is packed as it is"
        raise ConversionError(what, where=str(request.model), do="Leave it out")
    data = read_model(request.model)
    try:
        model = read_gguf(data)
        check_model("gguf", data)
    except ModelFileError as error:
        raise ConversionError(error.what, where=str(request.model), do=error.do) from error
    recipe = Recipe(f"gguf-{model.precision.replace('_', '-')}", "gguf", cast(Precision, model.precision))
    progress("golden prompts", 0, None)
    with load_engine("gguf", data, threads=max(1, cores() - 1)) as engine:
        assert isinstance(engine, LlamaEngine)
        inputs, outputs, info = engine.inputs, engine.outputs, engine.info
        golden = golden_rows(engine, _prompts(request))
    artifact = Artifact(recipe, data, inputs, outputs, 0.0, 0.0, tool_versions(["xllamacpp"]))
    contract = Contract(
        "generation",
        (InputContract("prompt", inputs[0].shape[1:], "uint8"),),
        (OutputContract("tokens", outputs[0].shape[1:], "int32"),),
        generation=GenerationSpec(model.context, model.chat),
    )
    needed = memory_bytes(model, len(data))
    digest = hashlib.sha256(data).hexdigest()
    why = "no language model was measured on boards"
    candidate = Candidate(recipe.name, "gguf", recipe.precision, len(data), memory_bytes=needed, why_no_estimate=why)
    bundles = []
    for profile, support in boards:
        choice = choose(profile.name, [candidate], ChoiceLimits(ram_mb=profile.memory.ram_mb), support)
        path: Path | None = None
        if choice.chosen is not None:
            content = BundleContent(
                name=request.bundle_name,
                version=request.model_version,
                model_id=digest,
                contract=contract,
                target=Target(profile.name, profile.arch, profile.threads, request.budget_ms),
                artifact=artifact,
                golden=golden,
                tools={"edgekit-deploy": RUNTIME_VERSION},
                terms=request.terms,
                secret=request.encrypt,
            )
            draft, manifest = assemble(content)
            path = request.output / f"{request.bundle_name}-{profile.name}.ekb"
            write_bundle(path, draft, manifest, signers)
        bundles.append(BundleReport(profile.name, path, choice, (candidate,)))
    return write_report(
        BuildReport(
            model={"path": str(request.model), "sha256": digest, "format": "gguf", "task": "generation"},
            findings=(),
            candidates=(),
            bundles=tuple(bundles),
            report=request.output / f"{request.bundle_name}-build.json",
            seconds=time.perf_counter() - start,
            command=request.command,
            tools={"edgekit-deploy": RUNTIME_VERSION, info.name: info.version},
            limits={"max_drop": request.max_drop, "budget_ms": request.budget_ms},
        )
    )


def memory_bytes(model: GgufModel, file_bytes: int) -> int:
    """What a board needs: the file, the usual cache, Python and llama.cpp."""
    tokens = min(model.context, USUAL_CONTEXT)
    return file_bytes + tokens * model.kv_bytes_per_token + _PROCESS_BYTES


def golden_rows(engine: LlamaEngine, prompts: Sequence[str]) -> list[Item]:
    """Golden items, those with the most clear tokens first. Raises PackagingError without one."""
    found = []
    for prompt in prompts:
        clear = 0
        for token in engine.probable(prompt, TOKENS, others=2):
            best, *rest = sorted((one["logprob"] for one in token["top_logprobs"]), reverse=True)
            if rest and best - rest[0] < math.log(CLEAR):
                break
            clear += 1
        found.append((-clear, prompt))
    rows = [prompt_row(prompt, -clear)[0] for clear, prompt in sorted(found, key=lambda one: one[0])[:_GOLDEN] if clear]
    if not rows:
        what = "no prompt has an answer of which even one token is clear, so nothing could prove the model on a board"
        raise PackagingError(what, do="Pass prompts with one right answer: --evaluation prompts.txt")
    return [{"prompt": row} for row in rows]


def _prompts(request: BuildRequest) -> Sequence[str]:
    """Those of --evaluation, a line each, else ours. Raises CalibrationError, InputError."""
    if request.evaluation is None:
        return PROMPTS
    file = Path(request.evaluation)
    do = f"Pass a text file with one prompt a line, each of at most {PROMPT_BYTES} bytes"
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        prompts = [admit(line, f"{file}, prompt {number}").data for number, line in enumerate(lines, 1)]
    except (OSError, ValueError) as error:
        raise CalibrationError(f"cannot be read: {error}", where=str(file), do=do, code="evaluation") from error
    except EdgekitError as error:
        raise CalibrationError(error.what, where=error.where, do=do, code="evaluation") from error
    if not prompts or max(map(len, prompts)) > PROMPT_BYTES:
        what = "it has no prompt, or one that is too long"
        raise CalibrationError(what, where=str(file), do=do, code="evaluation")
    return [prompt.decode() for prompt in prompts[:64]]
