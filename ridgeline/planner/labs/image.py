"""Lab 4, the image budget, and the figure of one photograph's way. Source: "The Mechanics of LLM Inference",
Vision-language inference."""

from dataclasses import dataclass, replace
from functools import lru_cache

from ridgeline.ledger import closed
from ridgeline.ledger.closed import Shape
from ridgeline.planner.ask import KV_BYTES, Pictures
from ridgeline.planner.encoders import encoders
from ridgeline.planner.lab import Bar, Control, Lab, Number, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import bars, both, chart, count, curve, gb, number
from ridgeline.planner.labs.parts import ASSUMED, WORKSPACE, Values, choice, text, whole
from ridgeline.planner.sight import Sight, look
from ridgeline.spec.hardware import HardwareSpec, hardware

_MHA = Shape(num_params=7.3e9, num_layers=32, width=4096, num_kv_heads=32, kv_elements=2 * 32 * 4096,
             hidden_size=4096, vocab_size=152064)
BACKBONES = {"7b, full mha": _MHA, "7b, gqa-8": replace(_MHA, num_kv_heads=8, kv_elements=2 * 32 * 1024)}


@lru_cache(maxsize=1024)
def _look(pictures: Pictures) -> Sight:
    return look(pictures, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Photo:
    """One request: images of equal tiles and a text, through an encoder and a backbone on one device. cache:
    its format."""

    pictures: Pictures
    text_tokens: int
    model: str
    backbone: Shape
    cache: str
    gpu: str
    device: HardwareSpec

    @staticmethod
    def of(values: Values) -> "Photo":
        name = text(values, "model")
        asked = Pictures(tiles=whole(values, "tiles"), images=int(values.get("images", 1)),
                         encoder=text(values, "encoder"), pooling=int(text(values, "pooling")))
        return Photo(pictures=asked, text_tokens=whole(values, "text"), model=name,
                     gpu=text(values, "device"), device=hardware(text(values, "device")),
                     backbone=BACKBONES[name] if name in BACKBONES else parts.shape(name),
                     cache=text(values, "cache"))

    def cut(self, tiles: float) -> "Photo":
        """The same in so many tiles an image."""
        return replace(self, pictures=replace(self.pictures, tiles=int(tiles)))

    @property
    def sight(self) -> Sight:
        return _look(self.pictures)

    @property
    def prompt_tokens(self) -> float:
        return self.sight.nominal_tokens + self.text_tokens

    @property
    def prompt_flops(self) -> float:
        return closed.prefill_flops(self.backbone, self.prompt_tokens)

    def kv_bytes(self, tokens: float) -> float:
        return closed.kv_bytes(self.backbone, tokens, KV_BYTES[self.cache])

    def encoder_s(self, flops: float) -> float:
        return flops / (self.device.peak_rate * ASSUMED.encoder)

    def prefill_s(self, tokens: float) -> float:
        return closed.prefill_flops(self.backbone, tokens) / (self.device.peak_rate * ASSUMED.prefill)

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds before the first token, by stage."""
        return {"preprocess": self.sight.tiles * ASSUMED.tile_s,
                "vision encoder": self.encoder_s(self.sight.nominal_flops),
                "prefill": self.prefill_s(self.prompt_tokens)}

    @property
    def exact_stages_s(self) -> dict[str, float] | None:
        """The same as a plan estimates it; None for a backbone that has a shape alone."""
        if self.model in BACKBONES:
            return None
        case = parts.Case(model=self.model, gpu=self.gpu, cache=self.cache)
        return {**self.stages_s, "vision encoder": self.encoder_s(self.sight.flops),
                "prefill": case.prefill(self.sight.tokens + self.text_tokens).estimate_s}

    @property
    def weight_bytes(self) -> float:
        return 2 * self.backbone.num_params

    def conversations(self, tokens: float) -> int:
        """Requests of so many tokens that fit."""
        return closed.max_sequences(self.device.marketed_bytes, self.weight_bytes, self.kv_bytes(tokens),
                                    WORKSPACE)


def _numbers(photo: Photo) -> tuple[Number, ...]:
    """The source's eight, then what stands behind them."""
    sight, stages, device, question = photo.sight, photo.stages_s, photo.device, photo.text_tokens
    kv, resident = photo.kv_bytes(photo.prompt_tokens), photo.conversations(photo.prompt_tokens)
    ttft, exact = sum(stages.values()), sight.tokens + question
    pooled = "each tile's grid pooled by squares"
    asked, read_s = photo.prefill_s(question), photo.weight_bytes / device.bytes_per_s
    return (
        number("patch_tokens", "Patch tokens", sight.patches, "tokens",
               "images * tiles * patches", f"{sight.tiles} * {sight.patches // sight.tiles}"),
        *both("visual_tokens", "Visual tokens", (sight.nominal_tokens, sight.tokens), "tokens",
              ("patch tokens / pooling", "images * tiles * ceil(side / sqrt(pooling))^2"),
              f"{sight.patches} / {photo.pictures.pooling}", pooled),
        *both("prompt_tokens", "Prompt tokens", (photo.prompt_tokens, exact), "tokens",
              ("visual + text",) * 2, f"{sight.nominal_tokens:g} + {question}", pooled),
        number("ttft", "TTFT", ttft, "s", "preprocess + encoder + prefill",
               " + ".join(f"{s * 1e3:.3g} ms" for s in stages.values()), "nominal"),
        *(number("ttft", "TTFT, as a plan estimates it", sum(seen.values()), "s",
                 "preprocess + encoder + the prompt's lines at assumed shares",
                 " + ".join(f"{s * 1e3:.3g} ms" for s in seen.values()), "exact")
          for seen in (photo.exact_stages_s,) if seen),
        number("vision_share", "Vision share of TTFT", 1 - stages["prefill"] / ttft, "share",
               "(preprocess + encoder) / TTFT", f"1 - {stages['prefill']:.3g} s / {ttft:.3g} s", "nominal"),
        *both("kv_per_request", "KV per request", (kv, photo.kv_bytes(exact)), "bytes",
              ("prompt tokens * KV per token",) * 2, f"{photo.prompt_tokens:g} * {photo.kv_bytes(1):g} B",
              pooled),
        *both("conversations", "Concurrent conversations", (resident, photo.conversations(exact)),
              "conversations", ("floor((memory - bf16 weights - workspace) / KV per request)",) * 2,
              f"({gb(device.marketed_bytes)} - {gb(photo.weight_bytes)} - {gb(WORKSPACE)}) / {gb(kv)}",
              pooled),
        number("text_ratio", "Visual tokens for each of the text", sight.nominal_tokens / question, "",
               "visual / text tokens", f"{sight.nominal_tokens:g} / {question}", "nominal"),
        number("preprocess", "Preprocessing on a processor", stages["preprocess"], "s", "tiles * time a tile",
               f"{sight.tiles} * {ASSUMED.tile_s * 1e3:g} ms (assumed)"),
        *both("encoder", "Vision encoder", (stages["vision encoder"], photo.encoder_s(sight.flops)),
              "s", ("tiles (2Pn + 4Ln^2d) / (peak * share)",
                    "FLOPs of its matrices and of its windows' attention / (peak * share)"),
              f"{sight.nominal_flops:.3g} FLOP, {ASSUMED.encoder:.0%} of {device.peak_rate:.3g}",
              "its blocks and connector" if encoders()[sight.encoder].described else "all that is known"),
        number("prefill", "Prefill", stages["prefill"], "s", "(2PN + 2LN^2d) / (peak * share)",
               f"{photo.prompt_flops:.3g} FLOP, {ASSUMED.prefill:.0%} of {device.peak_rate:.3g}", "nominal"),
        number("image_share", "Share of TTFT that the image is to blame for", 1 - asked / ttft, "share",
               "1 - text-only prefill / TTFT", f"1 - {asked:.3g} s / {ttft:.3g} s", "nominal"),
        *both("ttft_text", "TTFT of the text alone", (asked, max(asked, read_s)), "s",
              ("(2PN + 2LN^2d) / (peak * share)", "max(FLOPs time, weights / bandwidth)"),
              count(question, "token"), "with the weights read"))


def _compute(values: Values) -> Result:
    photo = Photo.of(values)
    device, kv = photo.device, photo.kv_bytes(photo.prompt_tokens)
    stages, resident = photo.stages_s, photo.conversations(photo.prompt_tokens)
    tiles, tiled = tuple(range(1, 26)), whole(values, "tiles")
    charts = (
        chart("ttft", "What stacks up before the first token", "", "s",
              *bars(("TTFT",), {name: [seconds] for name, seconds in stages.items()}), stacked=True),
        chart("tiles", "TTFT against tiles", "tiles an image", "s",
              curve("TTFT", tiles, lambda n: sum(photo.cut(n).stages_s.values()))),
        chart("residents", "Conversations against tiles", "tiles an image", "",
              curve("conversations", tiles,
                    lambda n: photo.conversations(photo.cut(n).prompt_tokens))))
    bar = Bar(key="memory", title=device.name, total=device.marketed_bytes,
              parts=(("weights", photo.weight_bytes), ("workspace", WORKSPACE),
                     (count(resident, "conversation"), resident * kv)))
    return Result(numbers=_numbers(photo), charts=charts, bars=(bar,), notes=(
        "An image is not one token of cost: it is prefill and cache that grow with its tiles.",
        "Preprocessing is the crudest number here: it runs on a processor and no GPU profile shows it.",
        "A second question about the same image is a short prompt where its prefix is cached.",
        "Two extremes to try: pooling 1 with 25 tiles, and pooling 16 with the encoder of 224 pixels. What "
        "lies between is bought with detail that the connector drops, which no number here can tell.",
        f"Padded to {count(tiled, 'tile')}, a batch of one such image and seven of one tile wastes "
        f"{closed.padded_waste((tiled, *[1] * 7), tiled):.0%} of the encoder's work."))


_MODEL = choice("model", "Language backbone", "7b, full mha", (*BACKBONES, *parts.MODELS),
                "the two 7b are the source's: 7.3e9 parameters, 32 layers of width 4096")
_CONTROLS: tuple[Control, ...] = (
    parts.slider("tiles", "Tiles per image", 13, 1, 25),
    choice("encoder", "Vision encoder", next(iter(encoders())), tuple(encoders())),
    choice("pooling", "Connector pooling", "4", ("1", "4", "9", "16"), "patches that become one token"),
    parts.slider("images", "Images per request", 1, 1, 16), _MODEL,
    parts.slider("text", "Text tokens", 30, 1, 4096, unit="tokens", log=True), parts.CACHE, parts.DEVICE)
IMAGE = Lab(key="image", title="Image budget", compute=_compute, controls=_CONTROLS,
            lead="What tiling, pooling and the backbone's attention make an image cost.")
_PLACES = ("file", "decode and resize", "tiles", "patches", "vision encoder", "connector", "prompt",
           "prefill", "first token", "cache")


def _photograph(values: Values) -> Result:
    step = whole(values, "step")
    photo = Photo.of(values)
    spent = photo.stages_s
    until = {"preprocess": 3, "vision encoder": 5, "prefill": 8}  # the place at which a stage is over
    seconds = sum(spent[name] for name, place in until.items() if step >= place)
    sight, prompt = photo.sight, photo.prompt_tokens
    tokens = (0, 0, 0, sight.patches, sight.patches, sight.nominal_tokens, prompt, prompt, prompt + 1,
              prompt + 1)[step - 1]
    flops = sight.nominal_flops * (step >= 5) + photo.prompt_flops * (step >= 8)
    kv = photo.kv_bytes(prompt) if step >= 8 else 0.0
    numbers = (
        number("place", "Place", _PLACES[step - 1]), number("tokens", "Tokens", tokens, "tokens"),
        number("elapsed", "Time since it arrived", seconds, "s", "sum of the stages so far", "", "nominal"),
        number("flops", "FLOPs so far", flops, "FLOP", "encoder, then prefill", "", "nominal"),
        number("kv", "Cache left behind", kv, "bytes", "prompt tokens * KV per token", "", "nominal"),
        number("prefill_over_encoder", "Prefill over encoder", photo.prompt_flops / sight.nominal_flops, "",
               "FLOPs / FLOPs", f"{photo.prompt_flops:.3g} / {sight.nominal_flops:.3g}", "nominal"))
    clock = [sum(spent[name] for name, place in until.items() if at >= place) for at in range(1, step + 1)]
    charts = (chart("clock", "Time until each place", "", "s", *bars(_PLACES, {"elapsed": clock})),)
    return Result(numbers=numbers, charts=charts, num_steps=len(_PLACES), notes=(
        f"{_PLACES[step - 1].capitalize()}: {seconds * 1e3:.3g} ms after it arrived, {tokens:.0f} tokens.",
        "The encoder runs once an image and has no decode: it belongs with prefill, and its output, not the "
        "pixels, is what to cache.",
        "The cache outlives both: it stays as long as the conversation.",
        "How long the prompt is shows only once the image is decoded and tiled; and its cache comes in one "
        "lump, not token by token."))


PHOTOGRAPH = Lab(
    key="photograph", title="One photograph", compute=_photograph,
    lead="The way of one image from a file to the cache it leaves behind.",
    controls=(parts.stepper(len(_PLACES)), *(c for c in _CONTROLS if c.key != "images")))
