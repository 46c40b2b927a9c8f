"""`ridgeline plan MODEL`: what a model on a device would do, before anything loads."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.base.errors import ConfigError
from ridgeline.base.units import parse_bytes
from ridgeline.commands.flags import count, positive, seconds, size
from ridgeline.planner.ask import (
    ARRIVALS,
    CACHES,
    WEIGHTS,
    Ask,
    Pictures,
    flag_of,
    parse_link,
    parse_speculate,
    parse_target,
)

if TYPE_CHECKING:
    from ridgeline.planner.setup import Workshop

HELP = "say whether a model fits, how fast it answers and what binds, before anything loads"


def _read(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return reader(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return read


def _override(text: str) -> tuple[str, object]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError(f"{text!r} is no FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="MODEL",
                        help="a model as people write it (llama-3-8b), a folder, a GGUF file or a Hub id; or "
                        "`search MODEL` for the cheapest of all, `check-claim TEXT`, `validate POINTS.csv`")
    where = parser.add_argument_group("deployment")
    where.add_argument("--gpu", metavar="NAME",
                       help="a device (h100, a100-80gb, l40s); search takes several, a,b,c")
    where.add_argument("--gpus", type=count, metavar="N",
                       help="devices in all; what no degree takes becomes replicas")
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert"), ("dp", "replica")):
        where.add_argument(f"--{name}", type=count, metavar="N", help=f"degree of {what} parallelism")
    where.add_argument("--weights", choices=WEIGHTS,
                       help="format of the blocks' matrices (as the model stores them)")
    where.add_argument("--weight-only", action="store_true",
                       help="unpack weights before 16-bit products, although the device could multiply them")
    where.add_argument("--kv", choices=CACHES, help="format of the KV cache (bf16)")
    where.add_argument("--memory", type=size, metavar="BYTES", dest="memory_bytes",
                       help="of a device, 80GB or 74.5GiB; default: as marketed")
    where.add_argument("--workspace", type=_read(parse_bytes), metavar="BYTES", dest="workspace_bytes",
                       help="memory beside weights and cache (2GB)")
    where.add_argument("--price", type=positive(float), metavar="USD", dest="price_usd_per_hour",
                       help="of one device an hour; default: the device's own")
    where.add_argument("--set", action="append", type=_override, default=[], metavar="FIELD=VALUE",
                       dest="overrides", help="change a field of the model's config: an untrained shape")
    _add_workload(parser.add_argument_group("workload"))
    parser.add_argument("--explain", action="store_true", help="each term: formula, inputs, source, error")
    parser.add_argument("--compare", action="store_true", help="what one change does to each metric, ranked")
    parser.add_argument("--plot", metavar="FILE.svg", help="search: the Pareto front as a picture")
    parser.add_argument("--profile", metavar="NAME",
                        help="a calibrated machine: its factors at the asked batch (else at one sequence), "
                        "and the machine itself without --gpu")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _add_workload(group: argparse._ActionsContainer) -> None:
    group.add_argument("--prompt", type=count, metavar="TOKENS", help="of a request (2048)")
    group.add_argument("--output", type=count, default=256, metavar="TOKENS", help="of a request (256)")
    group.add_argument("--batch", type=count, metavar="N",
                       help="sequences decoded together, over all devices (1)")
    group.add_argument("--rate", type=seconds, metavar="N", help="requests a second, instead of a batch")
    group.add_argument("--concurrency", type=count, metavar="N",
                       help="requests in flight, instead of a batch")
    group.add_argument("--arrivals", choices=ARRIVALS, default="steady",
                       help="how a closed batch's prompts come in: each as an answer ends, together in "
                       "waves, or all before any second token")
    for name in ("ttft", "tpot"):
        group.add_argument(f"--{name}", type=_read(parse_target), metavar="TIME", dest=f"{name}_s",
                           help="target, such as 500ms; judged by the estimate")
    group.add_argument("--images", type=count, metavar="N",
                       help="of a request; with --text-tokens the whole prompt")
    group.add_argument("--tiles", type=count, metavar="N",
                       help="an image is cut into (the most that the model cuts)")
    group.add_argument("--vision-encoder", metavar="NAME", help="instead of the model's own, such as so400m")
    group.add_argument("--pooling", type=count, metavar="N", help="patches that become one visual token")
    group.add_argument("--text-tokens", type=count, metavar="N", help="beside the images (30)")
    group.add_argument("--shared-prefix", type=count, default=0, metavar="TOKENS",
                       help="that begin every prompt: stored and computed once, read by every sequence")
    group.add_argument("--read-prefix-once", action="store_true",
                       help="the shared prefix is read once a step for all, by a kernel made for it")
    group.add_argument("--prefix-hit", type=float, default=0.0, metavar="R",
                       help="share of a prompt found in the cache")
    group.add_argument("--max-loras", type=count, default=0, metavar="N",
                       help="LoRA adapters that are held beside the model and worn, one by each sequence (0)")
    group.add_argument("--max-lora-rank", type=count, metavar="RANK", help="of the largest adapter (16)")
    group.add_argument("--prompt-logprobs", action="store_true", help="project every position of a prompt")
    group.add_argument("--speculate", type=_read(parse_speculate), metavar="gamma=4,alpha=.8,draft=.05",
                       help="drafts a step, their chance of acceptance, and the cost of one in steps")
    group.add_argument("--disaggregate", action="store_true",
                       help="prompts run on devices of their own, and their cache is sent over")
    group.add_argument("--link", type=_read(parse_link), metavar="BYTES/S", dest="link_bytes_per_s",
                       help="between the two, 50GB/s or 400Gb/s; default: the device's network")
    group.add_argument("--skew", type=float, default=0.0, metavar="S",
                       help="the i-th best liked expert is chosen like i^-S; 0: each as likely (0)")


_PROMPT = 2048  # tokens, unless told


def ask_of(args: argparse.Namespace, model: str, gpu: str) -> Ask:
    """The parsed flags as an ask."""
    given = {f.name: getattr(args, f.name) for f in fields(Ask) if f.name not in _NOT_FLAGS}
    of_images = [name for name in ("tiles", "vision_encoder", "pooling", "text_tokens")
                 if getattr(args, name) is not None]
    if args.images is None and of_images:
        raise ConfigError(f"{' and '.join(map(flag_of, of_images))} without --images: say how many a request "
                          "has")
    if args.images is not None and args.prompt is not None:
        raise ConfigError("--images and --prompt contradict one another: the prompt is the visual tokens and "
                          "--text-tokens; leave --prompt out")
    pictures = None if args.images is None else Pictures(images=args.images, tiles=args.tiles,
                                                         encoder=args.vision_encoder, pooling=args.pooling)
    prompt = (args.prompt or _PROMPT) if pictures is None else args.text_tokens or 30
    return Ask(model=model, gpu=gpu, kv=args.kv or "bf16", overrides=dict(args.overrides), prompt=prompt,
               pictures=pictures, **given)


_NOT_FLAGS = ("model", "gpu", "kv", "overrides", "prompt", "pictures")


def _print(args: argparse.Namespace, as_json: Callable[[], Any], as_text: Callable[[], str]) -> None:
    print(json.dumps(as_json(), indent=1, allow_nan=False) if args.json else as_text())


def _plan(args: argparse.Namespace, model: str) -> None:
    from ridgeline.planner.plan import plan
    from ridgeline.planner.report import as_json, as_text

    if not args.gpu and args.profile is None:
        raise ConfigError("--gpu is missing: name a device, such as h100, or a machine's --profile")
    _refuse(args, "plan", "plot")
    shop = _shop(args)
    found = plan(ask_of(args, model, args.gpu or args.profile), shop)
    change, values, texts = "", {}, []
    if not found.feasible:
        from ridgeline.planner.compare import remedy

        change = remedy(found, shop)
    if args.explain:
        from ridgeline.planner.explain import explain_json, explain_text

        values["explain"] = explain_json(found)
        texts.append(explain_text(found))
    if args.compare:
        from ridgeline.planner.compare import compare, compare_json, compare_text

        effects = compare(found, shop)
        values["compare"] = compare_json(effects)
        texts.append(compare_text(effects))
    _print(args, lambda: as_json(found, change) | values,
           lambda: "\n\n".join([as_text(found, change), *texts]))


def _shop(args: argparse.Namespace) -> "Workshop":
    """With the factors of --profile at the batch that is asked for, and with its device without --gpu."""
    from ridgeline.planner.setup import Workshop

    if args.profile is None:
        return Workshop()
    from ridgeline.ledger.profile import load_profile

    profile = load_profile(args.profile)
    if profile.calibration is None:
        raise ConfigError(f"profile {profile.name} has no calibration: make one with `ridgeline calibrate "
                          f"--profile {args.profile}`")
    factors = profile.calibration.of_plan(args.batch or args.concurrency or 1, args.prompt or _PROMPT)
    return Workshop(factors, None if args.gpu else profile.hardware())


def _validate(args: argparse.Namespace, path: str) -> None:
    from ridgeline.planner.validate import validate

    if not Path(path).is_file():
        raise ConfigError(f"plan validate: no file {path}: name a CSV file of measured points")
    found = validate(path, None if args.profile is None else _shop(args).efficiency)
    _print(args, found.as_json, found.text)


def _search(args: argparse.Namespace, model: str) -> None:
    from ridgeline.planner.pareto import pareto_svg, search_json, search_text
    from ridgeline.planner.search import SEARCHED_CACHES, SEARCHED_WEIGHTS, search

    _refuse(args, "plan search", "explain", "compare")
    if args.arrivals != "steady":
        raise ConfigError("plan search has no use for --arrivals: it prices a steady load")
    gpus = tuple(args.gpu.split(",")) if args.gpu else (
        Path(args.profile).stem,) if args.profile else ()
    ask = ask_of(args, model, gpus[0] if gpus else "")
    found = search(ask, gpus,
                   kvs=SEARCHED_CACHES if args.kv is None else (args.kv,),
                   weights=SEARCHED_WEIGHTS if args.weights is None else (args.weights,), shop=_shop(args))
    if args.plot:
        picture = pareto_svg(found, f"{model}: {ask.prompt} prompt and {ask.output} output tokens")
        if not picture:
            raise ConfigError(f"--plot {args.plot}: nothing to draw: {found.why}")
        Path(args.plot).write_text(picture, encoding="utf-8")
    _print(args, lambda: search_json(found), lambda: search_text(found))


def _check_claim(args: argparse.Namespace, text: str) -> None:
    from ridgeline.planner.claims import check_claim, claim_text, parse_claim

    default = vars(args.parser.parse_args(["plan", text]))
    given = [name for name, value in vars(args).items() if name not in ("json", "words", "command", "config")
             and value != default.get(name, value)]
    _refuse(args, "plan check-claim", *given)
    found = check_claim(parse_claim(text))
    _print(args, lambda: asdict(found), lambda: claim_text(found))


def _refuse(args: argparse.Namespace, door: str, *names: str) -> None:
    """ConfigError for flags that a door has no use for."""
    given = [flag_of(name) for name in names if getattr(args, name) not in (None, False)]
    if given:
        raise ConfigError(f"{door} has no use for {' and '.join(given)}: leave it out")


# Words that open another door than a plan of a model; each takes one more word.
DOORS: dict[str, Callable[[argparse.Namespace, str], None]] = {
    "search": _search, "check-claim": _check_claim, "validate": _validate}
DOORS_TAKE = {"search": "a model", "check-claim": 'a claim, "Llama-3-8B 300 tok/s on H100"',
              "validate": "a CSV file of measured points"}


def run(args: argparse.Namespace) -> int:
    words = list(args.words)
    if len(words) == 1 and words[0] in DOORS:
        raise ConfigError(f"plan {words[0]} needs one more word: {DOORS_TAKE[words[0]]}")
    door = DOORS[words.pop(0)] if words[0] in DOORS and len(words) > 1 else _plan
    if len(words) > 1:
        raise ConfigError(f"one model at a time, not {len(words)}: {' '.join(words)}; a name with blanks "
                          "needs quotes")
    door(args, words[0])
    return 0
