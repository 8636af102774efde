"""Chat in the terminal with a model on the device, or on a server if the device would start too late.

    edgekit build model.gguf --profile raspberry-pi-5
    python examples/chat.py bundles/model-raspberry-pi-5.ekb
    python examples/chat.py bundles/model-raspberry-pi-5.ekb --server http://gpu-box:8000 --budget-ms 500

Each line is a question. Ctrl-C ends an answer, Ctrl-D the chat. The line below an answer shows its source, the time to
the first token, and the rate of the rest.
"""

from __future__ import annotations

import argparse
import sys
import time

from edgekit_runtime import EdgekitError, Host, Model, open_bundle


def await_hosts(model: Model, most_s: float = 10.0) -> None:
    """The server is used once its probe succeeds; probing starts when the bundle is opened."""
    end = time.monotonic() + most_s
    while time.monotonic() < end and not all(one["proven"] or one["last_error"] for one in model.describe()["hosts"]):
        time.sleep(0.05)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("bundle")
    asked.add_argument("--server", help="an OpenAI-compatible server: vLLM, llama.cpp")
    asked.add_argument("--budget-ms", type=float, help="until the first token of an answer")
    asked.add_argument("--system", help="instructions for the model")
    asked.add_argument("--max-tokens", type=int, default=300)
    asked.add_argument("--drill-ms", type=float, default=0.0, help="make the device slower by so much, as a drill")
    options = asked.parse_args()
    hosts = [Host(options.server, protocol="openai")] if options.server else None
    with open_bundle(options.bundle, hosts=hosts) as model, model.dialogue(options.system) as dialogue:
        model.throttle(options.drill_ms)
        if hosts:
            await_hosts(model)
        for line in sys.stdin:
            if not line.strip():
                continue
            answer = dialogue.say(line.strip(), max_tokens=options.max_tokens, budget_ms=options.budget_ms, resume=True)
            try:
                for piece in answer:
                    print(piece, end="", flush=True)
            except KeyboardInterrupt:
                answer.close()
            except EdgekitError as error:
                print(f"\n{error} [{error.code}]", file=sys.stderr)
                continue
            speed = "" if answer.tokens_per_s is None else f", {answer.tokens_per_s:.0f} tokens a second"
            print(f"\n  [{answer.source}, first token after {answer.first_ms or 0:.0f} ms{speed}]", flush=True)


if __name__ == "__main__":
    main()
